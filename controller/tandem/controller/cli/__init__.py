"""The `tandem` command. Data on stdout, everything else on stderr.

`main` finds the module of a command in one of the folders and turns errors into messages and exit codes. `options`
holds the options that several commands share, `output` the printing of documents, tables and files, `reference` what is
generated from the commands.
"""
