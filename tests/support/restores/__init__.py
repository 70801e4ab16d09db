"""Restores from a backup in a folder into a real broker, with what can be done in the middle of them."""
