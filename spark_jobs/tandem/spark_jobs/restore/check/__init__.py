"""Reading a restored partition back and comparing it, by count and hash, with the loaded records."""
