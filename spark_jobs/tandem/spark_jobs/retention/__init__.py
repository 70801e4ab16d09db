"""`tandem retention`: delete objects by age and size, and sweep compacted topics up to a horizon.

`retention_plan` and `sweep_plan` decide, `retention_job` and `sweep` carry out; a chain entry always comes before
a deletion.
"""
