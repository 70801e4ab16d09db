"""Loading one task on a Spark worker: records in order, batches built, sent in transactions with their progress."""
