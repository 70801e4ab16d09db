"""The S3 store, by boto3: the only modules beside `encryption.kms` that know AWS's SDK.

Errors and answers of the SDK become errors and values of `sink.store` here, and credentials are kept out of both.
"""
