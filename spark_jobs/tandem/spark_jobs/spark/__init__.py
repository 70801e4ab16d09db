"""The Spark session of a command and what all jobs share on it: settings, progress, attempts, listings."""
