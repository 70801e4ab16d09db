"""What a restore has loaded: the producer whose transactions carry the progress, the progress, and its documents.

`task_progress` reads and writes `_tandem_restore_progress` on the target cluster, `offset_map` and `offset_pages` say
where source offsets came to lie, `restore_record` is what a finished restore leaves in the store.
"""
