"""What the clients of Kafka report, as errors of Tandem.

`error_codes` is the one table of codes, each with a meaning and a remedy; `broker_errors` and `admin_errors` find the
code in what kafka-python and confluent-kafka raise; `cluster_errors` are the errors that leave this edge.
"""
