"""Commands that send a request to the pair: turns, pauses, checkpoints."""
