"""Consumer groups after a restore: recorded offsets, translated by the offset map, set on the target cluster."""
