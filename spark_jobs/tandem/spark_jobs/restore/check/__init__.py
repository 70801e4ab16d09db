"""Reading a restored partition back and comparing it, by count and hash, with what was loaded."""
