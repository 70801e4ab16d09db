"""Which generations, objects and offsets a reader reads, decided from folded chains alone.

`completion` says when a generation is COMPLETE, `coverage` when one covers another (seal, clear), `restorable_state`
selects the objects that a restore reads, `state_as_of` and `moments` the same for an earlier moment, `one_history`
ensures that no two histories of a log are joined, `last_records` finds records that a reader may not skip. No module
here calls a store or a broker.
"""
