"""kafka-python's connections and protocol messages, and the bounds of record batches.

The only modules that use the inner classes of that library; contract tests check them.
"""
