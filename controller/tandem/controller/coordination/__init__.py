"""The coordination topic: requests and hints between the two instances, and the state folded from them.

The store is the authority; a message on this topic can at most cost time. Messages as bytes are in
`backup_avro.documents.coordination_message`.
"""
