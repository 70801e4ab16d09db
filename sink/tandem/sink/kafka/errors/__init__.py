"""Turns the errors of both Kafka clients into Tandem's errors.

`error_codes` is the one table of codes, each with a meaning and a remedy; `broker_errors` and `cluster.admin_errors`
find the code in the exceptions of kafka-python and confluent-kafka; `cluster_errors` defines the errors that callers
see.
"""
