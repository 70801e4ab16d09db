"""Loading one task on a Spark worker: reads records in order, builds batches, sends them in transactions."""
