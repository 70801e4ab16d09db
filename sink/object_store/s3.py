"""The S3 store, `s3://bucket/prefix`. The only module that imports boto3, botocore or urllib3.

Put-if-absent is `If-None-Match: *` on PutObject and CompleteMultipartUpload (see the Amazon S3 User Guide,
"conditional writes"): 412 says that the object exists, 409 that another request on the key was under way.

Retries are made here and not by botocore, so that one place knows that a put was sent more than once: if the answer
to a put that took effect is lost, the retry meets our own object and says EXISTS.
"""

from __future__ import annotations

import base64
import io
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import islice
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
import botocore.exceptions as vendor
import google_crc32c
import stamina
import structlog
import urllib3.exceptions
from botocore.config import Config
from botocore.parsers import ResponseParserError

from backup_avro.errors import ConfigError, DamagedError, TandemError
from sink.object_store.base import (
    ObjectInfo,
    ObjectMissingError,
    Put,
    StoreDeniedError,
    StoreMissingError,
    StoreTransientError,
    StoreUnfitError,
    UploadInfo,
)
from sink.object_store.clock import StoreClock
from sink.object_store.keys import check_folder, check_key, check_prefix, check_range, is_key, safe_start
from sink.object_store.probing import probe_key, probe_put_if_absent
from sink.object_store.s3_answers import error_of
from sink.object_store.settings import StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import ListMultipartUploadsOutputTypeDef, ListObjectsV2OutputTypeDef

_T = TypeVar("_T")
_DELETE_BATCH = 1000
_PART_CHECKSUMS = {"ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256"}
_MAX_PARTS = 10_000
_RESTARTS = 3
_MAX_SKEW = timedelta(minutes=5)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
# Subclasses of OSError and urllib3's own errors can surface while a body is read.
_VENDOR_ERRORS = (
    vendor.BotoCoreError,
    vendor.ClientError,
    ResponseParserError,
    urllib3.exceptions.HTTPError,
    OSError,
)
_log = structlog.get_logger(__name__)


class _ChecksumError(StoreTransientError):
    """A body failed the store's checksum; damaged on the way, or, if it stays so, in the store."""


class _UploadLostError(StoreTransientError):
    """A multipart upload can't be completed and must be started anew."""


class S3Store:
    """Objects of one bucket below `prefix` (no slashes at its ends, may be empty).

    Multipart uploads are used only after `probe` saw the store honour the condition on CompleteMultipartUpload too;
    until then, and where it doesn't, a large object goes in one PutObject (at most 5 GiB).
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        settings: StoreSettings,
        *,
        url: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bucket = bucket
        self._root = f"{prefix}/" if prefix else ""
        self._settings = settings
        self._url = url if url is not None else f"s3://{bucket}/{prefix}".rstrip("/")
        self._monotonic = monotonic
        self._clock = StoreClock()
        self._multipart = False
        self._delete_singly = False
        self._client = _make_client(settings)
        self._endpoint = self._client.meta.endpoint_url
        self._client.meta.events.register("after-call.s3", self._observe_date)
        self._encryption: dict[str, Any] = {}
        if settings.server_side_encryption != "none":
            self._encryption["ServerSideEncryption"] = settings.server_side_encryption
        if settings.kms_key_id is not None:
            self._encryption["SSEKMSKeyId"] = settings.kms_key_id

    @property
    def url(self) -> str:
        """The root as the user wrote it."""
        return self._url

    def put_if_absent(self, key: str, body: bytes | bytearray | memoryview) -> Put:
        """Create `key` unless it exists."""
        name = self._name(key)
        view = memoryview(body).cast("B")
        if self._multipart and len(view) > self._settings.multipart_threshold:
            return self._put_multipart(name, view)
        chunk = body if isinstance(body, bytes) else bytes(view)
        checksum = self._checksum(chunk)

        def put() -> Put:
            try:
                self._client.put_object(
                    Bucket=self._bucket, Key=name, Body=_body(chunk), IfNoneMatch="*", **checksum, **self._encryption
                )
            except vendor.ClientError as error:
                if _status(error) == 412:
                    return Put.EXISTS
                raise
            return Put.CREATED

        return self._call(f"put {name!r}", put)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes [start, end) of `key`."""
        check_range(start, end)
        name = self._name(key)
        if start == end:
            if self.head(key) is None:
                raise ObjectMissingError(f"{self._what(f'get {name!r}')}: no such object", remedy="was it deleted?")
            return b""

        def get() -> bytes:
            wanted: dict[str, Any] = (
                {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if start or end is not None else {}
            )
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=name, **wanted)
            except vendor.ClientError as error:
                if _status(error) == 416:  # nothing at or past `start`
                    return b""
                raise
            # Not `with answer["Body"] as …`: that hands out what lies below, without the checks of length and checksum.
            with closing(answer["Body"]) as stream:
                data = stream.read()
            if wanted and answer["ResponseMetadata"]["HTTPStatusCode"] == 200:
                return data[start:end]  # a store may send more than it was asked for
            return data

        try:
            return self._call(f"get {name!r}", get)
        except _ChecksumError as error:
            raise DamagedError(
                f"{self._what(f'get {name!r}')}: the bytes fail the store's checksum on every attempt",
                remedy="the object is damaged in the store or by something on the way; run verify",
            ) from error

    def head(self, key: str) -> ObjectInfo | None:
        """Return size and time of `key`, or None.

        Asks with a GET for one byte: the answer to a HEAD has no body, so it could not tell a missing object from a
        missing bucket or from a gateway whose backend is away.
        """
        name = self._name(key)

        def head() -> ObjectInfo | None:
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=name, Range="bytes=0-0")
            except vendor.ClientError as error:
                if _status(error) == 416:  # it exists and is empty
                    found = self._client.head_object(Bucket=self._bucket, Key=name)
                    return ObjectInfo(key=key, size=found["ContentLength"], modified=_utc(found["LastModified"]))
                if _code(error) == "NoSuchKey":
                    return None
                raise
            answer["Body"].close()
            part = _CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
            size = int(part[3]) if part else answer["ContentLength"]
            return ObjectInfo(key=key, size=size, modified=_utc(answer["LastModified"]))

        return self._call(f"head {name!r}", head)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield objects page by page; a page is asked for when the one before it is used up."""
        check_prefix(prefix)
        if after is not None and not after.startswith(prefix):
            if after > prefix:
                return  # every key with the prefix is less
            after = None
        start = safe_start(prefix, after) if after is not None else None
        more = {"StartAfter": self._root + start} if start is not None else {}
        for page in self._pages(self._root + prefix, more):
            for item in page.get("Contents", []):
                key = item["Key"][len(self._root) :]
                if is_key(key) and (after is None or key > after):
                    yield ObjectInfo(key=key, size=item["Size"], modified=_utc(item["LastModified"]))

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of folders below `prefix`; all of them are read first, as servers order them differently."""
        folder = self._root + check_folder(prefix)
        names = {
            item["Prefix"][len(folder) : -1]
            for page in self._pages(folder, {"Delimiter": "/"})
            for item in page.get("CommonPrefixes", [])
        }
        yield from sorted(name for name in names if is_key(prefix + name))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete keys in batches of 1000, with each key's own outcome looked at."""
        names = (self._name(key) for key in keys)
        failure: TandemError | None = None
        while batch := list(islice(names, _DELETE_BATCH)):
            try:
                self._delete_batch(batch)
            except (StoreMissingError, StoreUnfitError):
                raise
            except TandemError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """Yield unfinished multipart uploads."""
        check_prefix(prefix)
        marker: dict[str, Any] = {}
        while True:
            page = self._upload_page(self._root + prefix, marker)
            for item in page.get("Uploads", []):
                key = item["Key"][len(self._root) :]
                if is_key(key):
                    yield UploadInfo(key=key, upload_id=item["UploadId"], initiated=_utc(item["Initiated"]))
            if not page.get("IsTruncated"):
                return
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def abort_upload(self, upload: UploadInfo) -> None:
        """Abort one unfinished upload."""
        name = self._name(upload.key)
        with suppress(ObjectMissingError):
            self._call(
                f"abort the upload of {name!r}",
                lambda: self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload.upload_id),
            )

    def now(self) -> datetime:
        """The store's clock; see `StoreClock` for how exact and how monotone it is.

        The first call asks the store if nothing else did before.
        """
        now = self._clock.now(at=self._monotonic())
        if now is None:
            next(self._pages(self._root, {"MaxKeys": 1}))
            now = self._clock.now(at=self._monotonic())
        if now is None:
            raise StoreUnfitError(
                f"{self._url}: answers from {self._endpoint} have no Date header",
                remedy="let the proxy in front of the store pass it on",
            )
        return now

    def probe(self, prefix: str) -> tuple[str, ...]:
        """Check access and conditions, PutObject's and CompleteMultipartUpload's."""
        key = probe_key(check_prefix(prefix))
        warnings: list[str] = []
        try:
            probe_put_if_absent(self, key, token_bytes(32))
            self._multipart = self._probe_multipart(key)
            if not self._multipart:
                warnings.append(
                    f"{self._url}: no conditional multipart uploads here; large objects go in one request each"
                )
        except BaseException:
            with suppress(TandemError):
                self._remove_probe(key)
            raise
        self._remove_probe(key)
        if abs(self.now() - datetime.now(UTC)) > _MAX_SKEW:
            warnings.append(f"{self._url}: the store's clock and this host's differ by more than 5 minutes; use NTP")
        if self._is_versioned():
            warnings.append(
                f"{self._url}: versioning is on; what is cleared stays as old versions until a lifecycle rule "
                "expires noncurrent versions (and only those: objects of the chain must not expire)"
            )
        return tuple(warnings)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _name(self, key: str) -> str:
        return self._root + check_key(key)

    def _what(self, action: str) -> str:
        return f"{action} in bucket {self._bucket!r} at {self._endpoint}"

    def _checksum(self, chunk: bytes) -> dict[str, Any]:
        if not self._settings.put_crc32c:
            return {}
        return {"ChecksumCRC32C": base64.b64encode(google_crc32c.value(chunk).to_bytes(4, "big")).decode()}

    def _call(self, action: str, request: Callable[[], _T]) -> _T:
        """Make one request, several times if need be, and turn what goes wrong into errors of the store."""
        for attempt in self._attempts(_is_worth_retrying, self._settings.attempts):
            with attempt:
                try:
                    return request()
                except _VENDOR_ERRORS as error:
                    raise self._error_of(error, self._what(action)) from error
        raise AssertionError("the last attempt returns or raises")

    def _attempts(self, on: type[Exception] | Callable[[Exception], bool], attempts: int) -> Iterator[stamina.Attempt]:
        initial = self._settings.backoff_initial
        longest = self._settings.backoff_max
        return iter(
            stamina.retry_context(
                on, attempts=attempts, timeout=None, wait_initial=initial, wait_max=longest, wait_jitter=initial
            )
        )

    def _error_of(self, error: Exception, what: str) -> TandemError:
        if isinstance(error, vendor.ClientError):
            message = str(error.response.get("Error", {}).get("Message", ""))
            return error_of(_code(error), _status(error), message, what=what)
        return _error_without_answer(error, what)

    def _pages(self, prefix: str, arguments: dict[str, Any]) -> Iterator[ListObjectsV2OutputTypeDef]:
        token: dict[str, Any] = {}
        while True:
            page = self._page(prefix, arguments | token)
            yield page
            if not page["IsTruncated"]:
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _page(self, prefix: str, arguments: dict[str, Any]) -> ListObjectsV2OutputTypeDef:
        action = f"list {prefix!r}"

        def page() -> ListObjectsV2OutputTypeDef:
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, **arguments)
            if "IsTruncated" not in answer:
                # Something else than S3 answered 200. Read as an empty listing it would hide everything.
                raise StoreTransientError(
                    f"{self._what(action)}: the answer is no listing",
                    remedy="check that endpoint_url is an S3 server",
                )
            return answer

        return self._call(action, page)

    def _upload_page(self, prefix: str, marker: dict[str, Any]) -> ListMultipartUploadsOutputTypeDef:
        return self._call(
            f"list uploads below {prefix!r}",
            lambda: self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=prefix, **marker),
        )

    def _delete_batch(self, names: Sequence[str]) -> None:
        left = names

        def delete() -> None:
            nonlocal left
            answer = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": name} for name in left], "Quiet": True}
            )
            failed = [item for item in answer.get("Errors", []) if item.get("Code") != "NoSuchKey"]
            if failed:
                left = [item["Key"] for item in failed]
                first = failed[0]
                raise error_of(
                    first.get("Code", "unknown"),
                    200,
                    first.get("Message", ""),
                    what=self._what(f"delete {first['Key']!r} (and {len(failed) - 1} more)"),
                )

        if not self._delete_singly:
            try:
                self._call(f"delete {len(names)} objects, the first {names[0]!r},", delete)
            except TandemError as error:
                if not _lacks_batches(error):
                    raise
                self._delete_singly = True
            else:
                return
        for name in left:
            self._delete_one(name)

    def _delete_one(self, name: str) -> None:
        with suppress(ObjectMissingError):
            self._call(f"delete {name!r}", lambda: self._client.delete_object(Bucket=self._bucket, Key=name))

    def _put_multipart(self, name: str, view: memoryview) -> Put:
        for attempt in self._attempts(_UploadLostError, _RESTARTS):
            with attempt:
                return self._upload(name, view, max(self._settings.multipart_part_size, -(-len(view) // _MAX_PARTS)))
        raise AssertionError("the last attempt returns or raises")

    def _upload(self, name: str, view: memoryview, part_size: int) -> Put:
        algorithm: dict[str, Any] = {"ChecksumAlgorithm": "CRC32C"} if self._settings.put_crc32c else {}
        upload_id = self._call(
            f"begin the upload of {name!r}",
            lambda: self._client.create_multipart_upload(
                Bucket=self._bucket, Key=name, **algorithm, **self._encryption
            ),
        )["UploadId"]
        outcome: Put | None = None
        try:
            parts = [
                self._upload_part(name, upload_id, number, bytes(view[start : start + part_size]))
                for number, start in enumerate(range(0, len(view), part_size), start=1)
            ]
            outcome = self._complete(name, upload_id, parts)
        finally:
            if outcome is not Put.CREATED:
                self._abort_quietly(name, upload_id)
        return outcome

    def _upload_part(self, name: str, upload_id: str, number: int, chunk: bytes) -> dict[str, Any]:
        checksum = self._checksum(chunk)

        def upload() -> dict[str, Any]:
            try:
                answer = self._client.upload_part(
                    Bucket=self._bucket,
                    Key=name,
                    UploadId=upload_id,
                    PartNumber=number,
                    Body=_body(chunk),
                    **checksum,
                )
            except vendor.ClientError as error:
                if _code(error) == "NoSuchUpload":
                    raise self._lost(name) from error
                raise
            # What checksum the store keeps for the part must be told again on completion.
            kept = {name: value for name, value in answer.items() if name in _PART_CHECKSUMS}
            return {"PartNumber": number, "ETag": answer["ETag"], **kept}

        return self._call(f"upload part {number} of {name!r}", upload)

    def _complete(self, name: str, upload_id: str, parts: Sequence[Any]) -> Put:
        def complete() -> Put:
            try:
                self._client.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=name,
                    UploadId=upload_id,
                    IfNoneMatch="*",
                    MultipartUpload={"Parts": parts},
                )
            except vendor.ClientError as error:
                if _status(error) == 412:
                    return Put.EXISTS
                if _code(error) == "NoSuchUpload":
                    # Gone: an attempt whose answer was lost completed it, or someone aborted it.
                    if self.head(name[len(self._root) :]) is not None:
                        return Put.EXISTS
                    raise self._lost(name) from error
                if _status(error) == 409:
                    raise self._lost(name) from error  # after a conflict S3 wants the upload begun anew
                raise
            return Put.CREATED

        return self._call(f"complete the upload of {name!r}", complete)

    def _lost(self, name: str) -> _UploadLostError:
        return _UploadLostError(
            f"{self._what(f'upload {name!r}')}: the upload was aborted or met another one", remedy="it is begun anew"
        )

    def _abort_quietly(self, name: str, upload_id: str) -> None:
        # What went wrong before is the news; a leftover upload is found by list_uploads.
        try:
            self.abort_upload(UploadInfo(key=name[len(self._root) :], upload_id=upload_id, initiated=datetime.now(UTC)))
        except TandemError as error:
            _log.warning("multipart upload left behind", key=name, bucket=self._bucket, error=str(error))

    def _probe_multipart(self, key: str) -> bool:
        """Tell whether a multipart upload creates a new object and leaves an existing one alone."""
        try:
            created = self._upload(self._name(key + "-multipart"), memoryview(b"new"), 3)
            again = self._upload(self._name(key + "-multipart"), memoryview(b"old"), 3)
            return created is Put.CREATED and again is Put.EXISTS and self.get(key + "-multipart") == b"new"
        except (StoreUnfitError, StoreTransientError, StoreDeniedError, ObjectMissingError) as error:
            _log.info("multipart uploads are not used", bucket=self._bucket, error=str(error))
            return False

    def _remove_probe(self, key: str) -> None:
        self.delete([key, key + "-race", key + "-multipart"])

    def _is_versioned(self) -> bool:
        try:
            answer = self._call("read versioning", lambda: self._client.get_bucket_versioning(Bucket=self._bucket))
        except TandemError as error:
            # Only a warning hangs on it, and many policies don't allow the question.
            _log.debug("versioning is unknown", bucket=self._bucket, error=str(error))
            return False
        return answer.get("Status") == "Enabled"

    def _observe_date(self, parsed: dict[str, Any], **_: object) -> None:
        date = parsed.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date is not None:
            with suppress(ValueError):
                self._clock.observe(_utc(parsedate_to_datetime(date)), at=self._monotonic())


def _make_client(settings: StoreSettings) -> S3Client:
    # To an own endpoint the region means nothing, but the signature needs one.
    region = settings.region or ("us-east-1" if settings.endpoint_url is not None else None)
    try:
        return boto3.session.Session().client(
            "s3",
            endpoint_url=settings.endpoint_url,
            region_name=region,
            verify=settings.ca_bundle,
            aws_access_key_id=settings.access_key_id,
            aws_secret_access_key=settings.secret_access_key,
            aws_session_token=settings.session_token,
            config=Config(
                connect_timeout=settings.connect_timeout,
                read_timeout=settings.read_timeout,
                max_pool_connections=settings.max_pool_connections,
                request_checksum_calculation=settings.checksums,
                response_checksum_validation=settings.checksums,
                retries={"total_max_attempts": 1, "mode": "standard"},
                s3={"addressing_style": settings.addressing_style},
                tcp_keepalive=True,
                user_agent_extra="tandem",
            ),
        )
    except (vendor.BotoCoreError, ValueError) as error:
        raise ConfigError(
            f"the S3 client can't be made: {error}", remedy="check endpoint_url, region and the AWS profile"
        ) from error


def _body(chunk: bytes) -> bytes | io.BytesIO:
    # A time-out counts for one write to the socket. So that a slow link has it for each piece and not for the whole,
    # what is large is sent as a stream. The stream shares the bytes.
    return chunk if len(chunk) <= 1024 * 1024 else io.BytesIO(chunk)


def _code(error: vendor.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def _status(error: vendor.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _is_worth_retrying(error: Exception) -> bool:
    return isinstance(error, StoreTransientError) and not isinstance(error, _UploadLostError)


def _lacks_batches(error: TandemError) -> bool:
    # Some servers know no DeleteObjects, or want a Content-MD5 for it that the SDK no longer sends.
    return isinstance(error, StoreUnfitError) or "MissingContentMD5" in str(error)


def _error_without_answer(error: Exception, what: str) -> TandemError:
    said = f"{what}: {type(error).__name__}: {str(error)[:300]}"
    match error:
        case vendor.NoCredentialsError() | vendor.PartialCredentialsError():
            return StoreDeniedError(
                f"{what}: no credentials found",
                remedy="set access_key_id and secret_access_key, or provide them by environment, profile or instance",
            )
        case vendor.SSLError() if "CERTIFICATE_VERIFY_FAILED" in str(error) or "WRONG_VERSION_NUMBER" in str(error):
            return StoreDeniedError(said, remedy="set ca_bundle to the store's CA, or http:// if it speaks no TLS")
        case vendor.FlexibleChecksumError():
            return _ChecksumError(said, remedy="it is read again")
        case vendor.EndpointConnectionError() | vendor.ConnectTimeoutError() | vendor.ProxyConnectionError():
            return StoreTransientError(said, remedy="check that endpoint_url is right and the store is up")
        case vendor.ParamValidationError() | vendor.NoRegionError() | vendor.UnknownEndpointError():
            return ConfigError(said, remedy="check bucket, region and endpoint_url")
        case ResponseParserError():
            return StoreTransientError(
                f"{what}: the answer is no S3 answer", remedy="check that endpoint_url is an S3 server"
            )
    return StoreTransientError(said, remedy="the answer is lost, so the outcome is unknown; it is tried again")
