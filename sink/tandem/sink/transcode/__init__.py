"""Record batches (magic 2) to Avro block bodies and back.

`reference` and `plain_bodies` are plain Python and the oracle of the compiled twins `_twin` and `_bodies`; `choice`
says which are used. `reverse` builds record batches for a restore. Bytes in, bytes out.
"""
