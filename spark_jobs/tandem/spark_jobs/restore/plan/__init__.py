"""What a restore will do, decided before anything is touched: options, records, partitions, settings, time."""
