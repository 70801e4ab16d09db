"""The S3 store, by boto3: the only modules besides `sink.aws` and `encryption.kms` that use AWS's SDK.

They turn errors and answers of the SDK into errors and values of `sink.store`, and keep credentials out of both.
"""
