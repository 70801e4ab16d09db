"""The Spark jobs over a backup: restore, verify, retention, catch-up, and the data source `kafka_backup`.

Each job is a folder with a pure plan and the code that Spark's workers run. `spark` starts sessions, `state` finds
which state of the backup is read, `reading` reads its objects. Nothing here decides on turns of the pair.
"""
