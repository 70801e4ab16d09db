"""`tandem restore`: plan, create topics, load, check, set the recorded configuration, translate groups.

`job` runs the steps in this order; each step is a folder. `restore_record` and `offset_map` are the documents that a
restore leaves in the store, `abandon` gives a restore up, `drill` restores into scratch topics.
"""
