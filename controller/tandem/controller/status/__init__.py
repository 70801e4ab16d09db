"""The pair as it is now: seen from outside or from an instance, judged, and described for people and scripts.

`pair_view` holds what is known, `outside_view` and `instance_view` make it, `health` and `check` say what is wrong.
"""
