"""Commands that check, shrink or complete the stored backup: `verify`, `retention`, `release`, `catch-up`."""
