"""`tandem erase`: take all records of some keys out of every generation and checkpoint of a pair.

`erasure_plan` says which objects have to be searched, `erase_object` searches and rewrites one, `eraser` commits what
was rewritten to the chains and deletes what it took the place of. `live_keys` looks for the keys in the live topic,
`former_versions` for what a versioned bucket still holds. Nothing here writes to a topic.
"""
