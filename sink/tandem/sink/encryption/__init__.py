"""Client-side encryption of data objects: settings and keys. `sink.store.encrypted_objects` reads and writes with them.

The encrypted format is defined in `backup_avro.record`; `kms` is the only module here that uses the network.
"""
