"""All clients of Kafka.

`fetch` reads logs, `lookup` looks up offsets and leader epochs in them, `cluster` topics and groups; `auth` has TLS and
logins, `wire` the connections and messages, `events` the values that it all speaks of, `errors` the error codes and
exceptions.
"""
