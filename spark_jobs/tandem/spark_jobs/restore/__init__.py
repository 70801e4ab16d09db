"""`tandem restore`: plan, create topics, load, check, set the recorded configuration, translate groups.

`job` is the way through; each step is a folder. `restore_record` and `offset_map` are what a restore leaves in the
store, `abandon` gives one up, `drill` restores into scratch topics.
"""
