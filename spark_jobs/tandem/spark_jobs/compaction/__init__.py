"""The newest record of each key, as Kafka's own compaction would leave it; in memory, or by a shuffle of keys."""
