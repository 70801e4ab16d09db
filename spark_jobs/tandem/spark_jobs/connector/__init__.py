"""Backups that the Java connector wrote (record version 1): listed, chosen, read and verified as they are."""
