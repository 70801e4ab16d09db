"""Printing of what commands produce: documents, tables and files."""
