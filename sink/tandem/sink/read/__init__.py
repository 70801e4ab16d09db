"""Reading of a generation's partitions: the position of each one, and the order in which the logs are read.

`tail` follows the ends of the logs, `scan` reads the records that the logs held at the claim, `progress` keeps each
position and when the tail was at head, and has the tombstone rule, `backpressure` and `deferred_responses` stop the
fetch when memory is full. The records go to `sink.write`; `controller.instance` decides when a generation begins and
ends.
"""
