"""Sessions of AWS's SDK and their sources of credentials, for the S3 store and for KMS."""
