"""Health, status, metrics and the status page over HTTP: read-only, bounded in bytes, seconds and connections."""
