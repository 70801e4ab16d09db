"""Planning a restore before anything is changed: options, records, partitions, settings, expiry, duration."""
