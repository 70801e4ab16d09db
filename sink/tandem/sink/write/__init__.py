"""From Avro blocks to committed objects.

`object_buffer` packs blocks into objects, `sink.commit_draft` collects the contents of the next commit, `commit`
uploads the objects and appends the commit to the chain, `confirm` checks that objects are in the store, `merge` joins
small objects, `vanished_keys_check` compares keys before a superseded generation is cleared, `clear_generation` deletes
its objects.
"""
