"""The roles of the pair, and everything that people and other systems use: command line, HTTP, metrics, configuration.

`instance` observes, decides (`decision`) and acts once a tick; `coordination` is the topic between the two instances;
`status` and `history` show the pair; `cli` has the commands. Nothing outside of this package imports it.
"""
