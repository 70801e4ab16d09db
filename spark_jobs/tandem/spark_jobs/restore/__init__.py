"""`tandem restore`: plan, create topics, load, check, set the recorded configuration, translate groups.

`job` runs the steps in this order; each step is a folder. `restore_lease` lets one run at a time work on a plan,
`abandon` gives a restore up, `drill` restores into scratch topics. Where one key may lie in several partitions,
`merge_source` reads them with the bounds of each record's time (`time_bounds`), `ambiguous_keys` refuses what can't be
ordered, and `sorted_load` sends records to their target partition and sorts them there, for `load` to write.
"""
