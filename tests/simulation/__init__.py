"""A deterministic simulation of a pair: the production code, unchanged, in virtual time.

The page docs/quality/simulation.md explains it.
"""
