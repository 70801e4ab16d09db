"""Realistic mistakes, planted one at a time in a copy of the code, and the judges that have to find each of them."""
