"""kafka-python's connections and protocol messages, and the bounds of record batches.

`connections` and `requests` are the only modules that use the inner classes of that library; contract tests check them.
`sessions` plans the contents of fetch requests, `topic_ids` converts and checks topic ids.
"""
