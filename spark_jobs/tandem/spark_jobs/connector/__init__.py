"""Backups that the Java connector wrote (record version 1): list, choose, read and verify its files unchanged."""
