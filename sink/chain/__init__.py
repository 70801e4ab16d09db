"""Chains in the store: reading them into folded states, claiming numbers, appending with put-if-absent, pins."""
