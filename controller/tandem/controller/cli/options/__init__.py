"""Options that several commands share, and the functions that parse and check them."""
