"""Chains and documents in a store: claiming, reading, appending, pins, checkpoints, pauses, releases, outcomes.

The store's put-if-absent is the only fence. `backup_avro` defines the meaning of entries and documents.
"""
