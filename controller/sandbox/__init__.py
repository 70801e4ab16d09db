"""A broker and an S3 server on loopback for a first look, for the demo and for the tests.

Only what starts, watches and stops the two servers lives here. Nothing of Tandem itself may depend on it.
"""
