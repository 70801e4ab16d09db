"""`tandem verify`: objects against what the chains say, and copies key by key against each other or the live topics."""
