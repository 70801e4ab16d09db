"""Maps S3 error answers to errors of the store. Pure: takes codes, returns errors; `client` makes the requests."""

from __future__ import annotations

from tandem.backup_avro.errors import TandemError
from tandem.sink.store.contract.object_store import (
    ObjectMissingError,
    StoreDeniedError,
    StoreMissingError,
    StoreRejectedError,
    StoreTransientError,
    StoreUnfitError,
)

_TRANSIENT_CODES = frozenset(
    {
        "BadDigest",  # damaged in transfer; the same bytes may arrive whole next time
        "ConditionalRequestConflict",
        "IncompleteBody",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
    }
)
_CREDENTIALS = "check access_key_id and secret_access_key, or what the environment, profile or instance provides"
# Beginning of `what` -> the right that the action needs. Longer beginnings come first.
_RIGHTS = {
    "put": "s3:PutObject on that key",
    "abort the upload": "s3:AbortMultipartUpload on that key",
    "get": "s3:GetObject on that key, and s3:ListBucket on its prefix: without it S3 refuses what is not there",
    "head": "s3:GetObject on that key, and s3:ListBucket on its prefix: without it S3 refuses what is not there",
    "delete": "s3:DeleteObject on that key",
    "list uploads": "s3:ListBucketMultipartUploads on the bucket",
    "list": "s3:ListBucket on the bucket for that prefix",
}
_DENIED_CODES = {
    "AllAccessDisabled": "ask the owner of the bucket",
    "AccountProblem": "ask the provider about the account",
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "InvalidToken": "renew session_token and the key pair it belongs to",
    "ExpiredToken": "renew session_token and the key pair it belongs to",
    "TokenRefreshRequired": "renew session_token and the key pair it belongs to",
    "RequestTimeTooSkewed": "set this host's clock (NTP)",
    "AuthorizationHeaderMalformed": "set region to the bucket's region",
    "PermanentRedirect": "set region and endpoint_url to the bucket's own",
    "InvalidObjectState": (
        "the object is in an archive (storage class GLACIER, DEEP_ARCHIVE or an archive tier): bring it back with "
        "`aws s3api restore-object --restore-request Days=7`, which takes minutes to two days; run this again then, "
        "and keep lifecycle rules and Intelligent-Tiering archives off the prefix"
    ),
    "ObjectLockConfigurationNotFoundError": "check the bucket's object lock",
}
_REJECTED_CODES = {
    "EntityTooLarge": "lower object.target_size",
    "KMS.DisabledException": "enable the key named by kms_key_id",
    "KMS.NotFoundException": "correct kms_key_id",
    "InvalidStorageClass": "check the bucket's rules",
}
_MISSING_BUCKET = frozenset({"NoSuchBucket", "InvalidBucketName"})
_MISSING_OBJECT = frozenset({"NoSuchKey", "NoSuchVersion", "NoSuchUpload"})


def error_of(code: str, status: int, message: str, *, what: str) -> TandemError:
    """Return the error for the store's answer to `what` (action, key, bucket and endpoint in words).

    A 404 counts as a missing object only if the store itself says so: a gateway whose backend is away answers 404
    too, which must never be read as "no chain here".
    """
    said = f"{code}: {message[:300]}" if message and message != code else code
    text = f"{what}: the store answered {status} {said}"
    if code in _MISSING_OBJECT:
        return ObjectMissingError(
            text, code="TDM-S071", remedy="check whether it was deleted, and that the URL is right"
        )
    if code in _MISSING_BUCKET:
        return StoreMissingError(
            text, code="TDM-S072", remedy="create the bucket, or correct its name, region and endpoint_url"
        )
    if code == "AccessDenied" or code in _DENIED_CODES:
        return StoreDeniedError(text, code="TDM-S073", remedy=_DENIED_CODES.get(code) or _right_for(what))
    if code in _TRANSIENT_CODES:
        return StoreTransientError(text, code="TDM-S074", remedy="the store is busy or restarting; it is tried again")
    if code == "NotImplemented" or status == 501:
        return StoreUnfitError(text, code="TDM-S075", remedy="use a store that implements this part of the S3 protocol")
    if status in {401, 403}:
        return StoreDeniedError(text, code="TDM-S076", remedy=_CREDENTIALS + ", and that they may use this bucket")
    if status in {301, 302, 307, 308}:
        return StoreDeniedError(text, code="TDM-S077", remedy=_DENIED_CODES["PermanentRedirect"])
    if status == 404:
        return StoreTransientError(
            text,
            code="TDM-S078",
            remedy="that is no S3 answer; check that endpoint_url is an S3 server and that it is up",
        )
    if status in {408, 409, 425, 429} or status >= 500 or status < 400:
        return StoreTransientError(text, code="TDM-S079", remedy="the store is busy or restarting; it is tried again")
    return StoreRejectedError(
        text, code="TDM-S080", remedy=_REJECTED_CODES.get(code, "see the store's own log for the request")
    )


def _right_for(what: str) -> str:
    right = next((right for begin, right in _RIGHTS.items() if what.startswith(f"{begin} ")), "the action")
    return f"allow {right}; `tandem policy s3` prints what each role needs, docs/roles.md explains it"
