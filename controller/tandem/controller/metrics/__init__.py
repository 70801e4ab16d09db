"""Metrics for Prometheus: `catalogue` defines them, `instance_metrics` has their values, `page` renders it."""
