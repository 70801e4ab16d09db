"""A broker and an S3 server on loopback for a first look, for the demo and for the tests.

The broker's jars are downloaded with Ivy, the S3 server is a Python package. A running pair uses neither.
"""
