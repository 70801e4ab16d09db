"""The `tandem` command. Data on stdout, everything else on stderr.

`main` finds the module of a command in one of the folders and turns errors into messages and exit codes. `options`
has what commands share on the way in, `output` on the way out.
"""
