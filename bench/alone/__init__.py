"""What is done to the bytes of blocks and objects, on one core and without a server: `python -m bench.alone.NAME`."""
