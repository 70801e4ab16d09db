"""How far each partition of a generation is, and what is read next.

`tail` follows the end of the logs, `scan` reads what they held at the claim, `partition_progress` keeps the position
and the evidence for the tombstone rule, `backpressure` and `deferred_responses` stop the fetch when memory is full.
What is read goes to `sink.write`; who decides on generations is `controller.instance`.
"""
