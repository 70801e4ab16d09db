"""Spark jobs over a backup: the `kafka_backup` data source, restore, retention, verify. Plans are pure."""
