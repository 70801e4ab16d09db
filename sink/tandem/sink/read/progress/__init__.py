"""The progress of one partition, without I/O: position, when it was at head, tombstone guarantee, scan plan."""
