"""Metrics for Prometheus: `catalogue` names them, `instance_metrics` is what is known, `collector` makes the page."""
