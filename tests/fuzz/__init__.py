"""Hostile bytes against what decodes them: `make fuzz`."""
