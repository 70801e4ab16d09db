"""Which state of the backup a job reads: what the user chose, found in what the store holds.

The rules are in `backup_avro.selection`; here the store is asked and warnings are collected.
"""
