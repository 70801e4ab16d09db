"""Everything that talks to Kafka.

`fetch` reads logs, `lookup` asks about places in them, `cluster` about topics and groups, `auth` logs in, `wire` has
the connections and messages, `errors` what goes wrong.
"""
