"""From Avro blocks to committed objects.

`object_buffer` packs blocks into objects, `commit_draft` collects what the next commit says, `commit` uploads and
appends it to the chain, `confirm` looks whether objects are there, `merge` joins small objects, `clear` deletes a
generation.
"""
