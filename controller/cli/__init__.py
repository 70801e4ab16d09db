"""The command line: one module per command, data on stdout, everything else on stderr."""
