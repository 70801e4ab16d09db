"""The coordination topic: requests and hints between the two instances, and what is remembered of them.

The store is the authority; whatever comes over this topic can at most cost time. Messages as bytes are in
`backup_avro.documents.coordination_message`.
"""
