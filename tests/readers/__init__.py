"""Applications as judges of a restore: `make readers`.

Applications from the package registries (`programs`, each in an environment of its own, pinned in `locks`) write their
compacted topics into a source cluster. A pair backs the cluster up, with a handover while they write.
Everything is restored with default options into a second cluster, and the applications are started there: they
have to come up, to have the state that they had, and to go on. The table of what they told is docs/quality/readers.md.
"""
