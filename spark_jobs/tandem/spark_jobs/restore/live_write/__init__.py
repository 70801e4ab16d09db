"""Writing records into a topic that applications write to at the same time.

`guarded_writer` holds the rule: a transaction is committed only if nobody else wrote one of its keys before it.
`watched_log` reads what others wrote, `live_transactions` sends and commits. `tandem rewind` and `tandem restore
vanished` write with them.
"""
