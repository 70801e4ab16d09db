"""Commands that bring records back, or out: `restore`, `drill`, `export`."""
