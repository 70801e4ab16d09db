"""The newest record of each key, as Kafka's own compaction would leave it."""
