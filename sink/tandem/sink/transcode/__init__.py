"""Record batches (magic 2) to Avro block bodies and back.

`aborted_transactions` tells which records `read_committed` leaves out. `plain_transcoder` and `plain_bodies` are plain
Python and the test oracle of the compiled twins `_twin` and `_bodies`; `implementation_choice` selects the ones to use.
`avro_to_batch` builds record batches for a restore. Bytes in, bytes out.
"""
