"""What every process shares, Spark's Python workers among them: the log, and secrets that no output may show.

`log` masks and escapes, `environment_secrets` finds what SDKs take from the environment, `sourced_secret` is a secret
that crosses to another process as the place where it was read.
"""
