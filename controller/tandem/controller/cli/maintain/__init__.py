"""Commands that check or shrink what is stored: `verify`, `retention`, `release`, `catch-up`."""
