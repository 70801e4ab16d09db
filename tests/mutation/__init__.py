"""Mutation testing of the pure core."""
