"""The process of an instance or a command: its secrets, memory, open files and bounded calls.

Logs are in `sink.process`, which Spark's workers share too.
"""
