"""From objects (or a live log) to records: fetch, check the SHA-256, decode, cut to the wanted offsets.

`object_reader` serves every job, `arrow` makes columns for Spark, `live_log` reads a topic of the cluster in the same
form, `newest_first` supplies records to the selection rules, `wanted_state` says which state a job wants.
"""
