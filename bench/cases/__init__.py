"""One measured thing each, run in a process of its own: by `make bench` or by hand, as `python -m bench.cases.NAME`.

What they share (runs, loads, servers, a store in memory) lies in `bench`, and so does what reads their figures.
"""
