"""Object stores: `file://` and `s3://` behind one protocol, `base.ObjectStore`. Only the S3 adapter imports boto3."""
