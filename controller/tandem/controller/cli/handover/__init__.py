"""Commands that ask the pair for something: turns, pauses, checkpoints."""
