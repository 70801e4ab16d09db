"""Code for every process, Spark's Python workers included: the log, and the hiding of secrets in all output.

`log` masks and escapes, `environment_secrets` finds the secrets that SDKs take from the environment, `sourced_secret`
is a secret that is passed to another process as the place where it was read.
"""
