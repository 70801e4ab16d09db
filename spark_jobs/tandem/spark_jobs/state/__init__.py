"""Find the state of the backup that a job reads: the user's request, resolved against the contents of the store.

The rules are in `backup_avro.selection`; this folder reads the store and collects warnings. `read_options` checks what
a notebook or `tandem export` asks for.
"""
