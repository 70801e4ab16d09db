"""Consumer groups after a restore: translates recorded offsets by the offset map, sets them on the target cluster."""
