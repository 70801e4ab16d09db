"""Commands that only read: they change nothing in a pair."""
