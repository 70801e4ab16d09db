"""Documents, tables and files that commands leave behind, and the reference pages made of them."""
