"""The progress of one partition, without I/O: position, time at head, tombstone guarantee, next range of the scan."""
