"""The stored formats of Tandem, and the rules that bind them.

Bytes and plain values come in, plain values and bytes go out: no module of this package opens a file, a socket or a
clock. `sink` writes these formats, `spark_jobs` reads them, `controller` bases its decisions on them. `errors` is the
one tree of errors of the project.
"""
