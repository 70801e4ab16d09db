"""What this machine remembers of the store, in a private file of its user: the last heads of each pair's chains.

`state_file` reads and replaces the file, `remembered_heads` compares it with the chains. The bucket and the
coordination topic never hold it, so a bucket that was set back can't set it back. It is evidence for people and no
authority: no decision of an instance depends on it, and a command goes on without it.
"""
