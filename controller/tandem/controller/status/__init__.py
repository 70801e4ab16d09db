"""The present state of the pair, as a command or an instance sees it: views, health rules and documents.

`pair_view` is the model, `outside_view` and `instance_view` build it, `health` and `check` find the problems.
"""
