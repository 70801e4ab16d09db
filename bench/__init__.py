"""Benchmarks: `make bench` starts its own servers, prints figures and holds them against targets."""
