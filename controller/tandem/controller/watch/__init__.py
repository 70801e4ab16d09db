"""What a process reads again and again: chains in the store, guarded topics of the cluster, requested checkpoints.

Instances and commands use it; `instance` acts on it, `status` makes views of it.
"""
