"""What documents, command lines, pages and outputs are held against."""
