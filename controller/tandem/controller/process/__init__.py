"""What every process of Tandem shares: logs, secrets that no output may show, memory, open files, bounded calls."""
