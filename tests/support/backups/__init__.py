"""Backups, chains and histories made without Kafka, and independent readers that judge what is restored from them."""
