"""The S3 store, by boto3, which `client` alone imports; `sink.aws` and `encryption.kms` also use AWS's SDK.

They turn errors and answers of the SDK into errors and values of `sink.store`, and keep credentials out of both.
"""
