"""Which generations, objects and offsets a reader takes, decided from folded chains alone.

`coverage` says which generation covers which (COMPLETE, seal, clear), `newest_state` what a restore reads,
`state_as_of` and `moments` the same for an earlier moment, `one_history` that no two histories of a log are joined,
`last_records` what a reading may not skip. Nothing here asks a store or a broker.
"""
