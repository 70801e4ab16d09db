"""Kafka brokers of other shapes and releases than the sandbox's, and topics on them."""
