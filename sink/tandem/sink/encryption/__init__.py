"""Client-side encryption of data objects: where keys come from, and reading and writing with them.

The format of what is encrypted is in `backup_avro.record`; `kms` is the only module here with a network.
"""
