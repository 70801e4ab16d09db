"""What a whole pair costs, two instances as processes on a broker of its own: `python -m bench.pairs.NAME`."""
