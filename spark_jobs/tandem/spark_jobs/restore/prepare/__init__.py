"""Preparing the target cluster for the load: reads its topics, refuses conflicts, creates topics, sets their config."""
