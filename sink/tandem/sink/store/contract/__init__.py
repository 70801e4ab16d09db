"""What every object store fulfils: the protocol, its errors, settings and keys, the clock, the put-if-absent probe."""
