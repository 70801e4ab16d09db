"""Our small signer against the AWS SDK's."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tandem.controller.sandbox.sigv4 import S3Key, S3Request, authorization


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("HEAD", "/bucket", b""), ("PUT", "/bucket/some%20key", b"body"), ("GET", "/", b"")],
)
def test_signature_equals_the_sdks(method: str, path: str, body: bytes) -> None:
    """Same request, same second, same header."""
    key = S3Key(access_key="AKIDEXAMPLE", secret_key="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    digest = hashlib.sha256(body).hexdigest()
    request = AWSRequest(method, f"http://127.0.0.1:8333{path}", headers={"X-Amz-Content-SHA256": digest}, data=body)
    request.context["payload_signing_enabled"] = True
    S3SigV4Auth(Credentials(key.access_key, key.secret_key), "s3", "eu-central-1").add_auth(request)
    at = datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    sent = S3Request(method=method, address="127.0.0.1:8333", path=path, body=body)
    ours = authorization(sent, key=key, region="eu-central-1", at=at)
    assert ours == request.headers["Authorization"]


def test_the_secret_is_not_shown() -> None:
    """Neither in a traceback nor in a log."""
    assert "hush" not in repr(S3Key(access_key="a", secret_key="hush"))
