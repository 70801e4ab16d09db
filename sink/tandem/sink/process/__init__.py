"""What every process needs, Spark's Python workers included; it imports no other folder of `sink`.

`log` masks and escapes, `environment_secrets` finds the secrets that SDKs take from the environment, `sourced_secret`
is a secret that is passed to another process as the place where it was read. `clock` is the time of the process,
`rates` limits lines and requests, `memory_budget` shares the memory, `resource_limits` tells a full disk or memory from
other faults, `meters` is what the pipeline reports to metrics.
"""
