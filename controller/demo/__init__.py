"""The demo: a real topic backed up, handed over and restored on the sandbox, told as a story with its figures."""
