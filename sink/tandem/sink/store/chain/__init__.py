"""Chains and documents in a store: claiming, reading, appending, pins, checkpoints, pauses, releases, outcomes.

The store's put-if-absent is the only fence. What entries and documents mean is said in `backup_avro`.
"""
