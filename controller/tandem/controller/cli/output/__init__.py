"""Documents, tables and files that commands produce, and the reference pages generated from them."""
