"""All clients of Kafka.

`fetch` reads logs, `lookup` looks up offsets and leader epochs in them, `cluster` topics and groups; `auth` has TLS and
logins, `wire` the connections and messages, `errors` the error codes and exceptions.
"""
