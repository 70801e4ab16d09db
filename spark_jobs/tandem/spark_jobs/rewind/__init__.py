"""Rewinding a live topic: of each key whose value differs from a moment's, the value of that moment is written again.

`key_changes` compares the state at a moment with the live log, `rewind_partition` reads both sides of one partition,
`guarded_write` writes and leaves alone what others wrote meanwhile, `rewind_record` keeps in the store what a rewind
wrote, and `job` runs all of it on Spark. Records come from the objects that a moment's selection names and from the
brokers; they go back to the partition that their keys live in. Whole topics are written by `restore`.
"""
