"""`tandem demo`: a real topic backed up, handed over and restored on the sandbox, told with its figures."""
