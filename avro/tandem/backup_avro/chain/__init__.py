"""Chains: the numbered, hash-linked entries that record what a generation holds.

`entries` has the values, `json_codec` their bytes, `generation` folds entries into the state of a generation and checks
which entry may follow which (with which objects by `object_rules` and `erasure`), `snapshot` is that state as an entry.
`layout` builds every key of the store, `heads` and `signatures` distinguish a chain from an older or a forged one.
Reading and writing chains in a store is in `sink.store.chain`.
"""
