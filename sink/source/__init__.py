"""The source: raw record batches out of Kafka with kafka-python's connections, metadata and fetch sessions."""
