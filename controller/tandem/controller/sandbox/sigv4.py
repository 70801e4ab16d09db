"""Send one signed S3 request with the standard library, enough to check whether a local server is ready.

AWS Signature Version 4, https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html.
Not for data: there is no retry and no streaming.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce

_SIGNED = "host;x-amz-content-sha256;x-amz-date"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Key:
    """An access key and its secret; `repr` leaves the secret out."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Request:
    """A request without query to a server at `address` (host and port); `path` is percent-encoded."""

    method: str
    address: str
    path: str
    body: bytes = b""

    @property
    def body_sha256(self) -> str:
        """The body's SHA-256, in hex."""
        return hashlib.sha256(self.body).hexdigest()


def authorization(sent: S3Request, *, key: S3Key, region: str, at: datetime) -> str:
    """Return the Authorization header of a request that is signed at `at` (UTC)."""
    stamp = at.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    headers = f"host:{sent.address}\nx-amz-content-sha256:{sent.body_sha256}\nx-amz-date:{stamp}\n"
    request = f"{sent.method}\n{sent.path}\n\n{headers}\n{_SIGNED}\n{sent.body_sha256}"
    to_sign = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
    signing_key = reduce(_hmac, scope.split("/"), f"AWS4{key.secret_key}".encode())
    signature = _hmac(signing_key, to_sign).hex()
    return f"AWS4-HMAC-SHA256 Credential={key.access_key}/{scope}, SignedHeaders={_SIGNED}, Signature={signature}"


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def send_signed(request: S3Request, *, key: S3Key, region: str, timeout_s: float) -> int:
    """Send a request over plain HTTP and return its status. Raises OSError, http.client.HTTPException."""
    at = datetime.now(UTC)
    headers = {
        "x-amz-content-sha256": request.body_sha256,
        "x-amz-date": at.strftime("%Y%m%dT%H%M%SZ"),
        "Authorization": authorization(request, key=key, region=region, at=at),
    }
    with closing(http.client.HTTPConnection(request.address, timeout=timeout_s)) as connection:
        connection.request(request.method, request.path, body=request.body, headers=headers)
        response = connection.getresponse()
        response.read()
        return response.status
