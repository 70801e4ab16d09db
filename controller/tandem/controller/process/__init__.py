"""What every process of an instance or a command shares: its secrets, memory, open files, bounded calls.

Logs are in `sink.process`, which Spark's workers share too.
"""
