"""`tandem verify`: compare objects with their chains, and copies key by key with each other or with the live topics."""
