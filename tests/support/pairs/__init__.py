"""Pairs of instances as real processes, and what an instance sees and hears of its pair, made by hand."""
