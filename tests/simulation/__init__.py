"""A deterministic simulation of a pair: the production code, unchanged, in virtual time. See docs/simulation.md."""
