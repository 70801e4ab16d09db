"""`tandem catch-up`: Spark reads the scan of a generation that an instance is building.

The ranges are read by `sink.read.scan.range_reader` and offered to the instance, which commits them to its chain.
"""
