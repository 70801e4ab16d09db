"""Clients of the strict S3 server, by credential."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config

from support.clusters.strict_servers import StrictS3
from tandem.controller.sandbox.s3 import REGION, S3Server
from tandem.controller.sandbox.sigv4 import S3Key


def client_of(server: StrictS3 | S3Server, key: S3Key) -> Any:
    """Return a client that asks once."""
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=REGION,
        aws_access_key_id=key.access_key,
        aws_secret_access_key=key.secret_key,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )
