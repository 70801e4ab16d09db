"""A broker and an S3 server on loopback for a first look, for the demo and for the tests."""
