"""Client-side encryption of data objects: loading of keys, and encrypted reading and writing.

The encrypted format is defined in `backup_avro.record`; `kms` is the only module here that uses the network.
"""
