"""Kafka to S3: fetch raw record batches, transcode them to Avro blocks, roll blocks into objects, store, commit."""
