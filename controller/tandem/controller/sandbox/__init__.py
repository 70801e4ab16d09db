"""A broker and an S3 server on loopback for a first look, for the demo and for the tests.

The broker's jars come by Ivy, the S3 server from its package. None of it is used by a running pair.
"""
