"""Restores whose driver, executors, workers and broker are killed again and again: `make kills`."""
