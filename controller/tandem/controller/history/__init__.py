"""Past events of generations, the progress of a handover that a command follows, and the rules for a release.

`describe` tells all of one generation, checkpoint or partition.
"""
