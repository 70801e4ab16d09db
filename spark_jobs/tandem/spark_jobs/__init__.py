"""The Spark jobs over a backup: restore, verify, retention, catch-up, and the data source `kafka_backup`.

Each job is a folder with a pure plan and the code that Spark's workers run. `spark` starts sessions, `notebook` that of
a notebook, `state` finds the state of the backup that a job reads, `reading` reads its objects. Nothing here decides
which instance of the pair is active.
"""
