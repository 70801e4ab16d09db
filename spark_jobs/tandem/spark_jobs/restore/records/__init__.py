"""Records on their way from objects to the target: order, changes, target partitions, the newest of each key.

`load_task` describes what one Spark task loads, `record_stream` reads it, `record_changes` and `partitioner` say what
becomes of a record and where it goes.
"""
