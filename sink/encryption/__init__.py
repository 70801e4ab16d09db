"""Client-side encryption of data objects: where keys come from, and reading and writing with them."""
