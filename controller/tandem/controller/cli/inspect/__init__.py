"""Commands that only look at a pair."""
