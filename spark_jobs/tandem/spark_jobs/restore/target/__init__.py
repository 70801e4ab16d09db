"""The target cluster as it is before a restore changes it: its topics, their configuration and what they hold."""
