"""Put-if-absent of a large object in parts."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import google_crc32c
import structlog

from tandem.backup_avro.errors import TandemError
from tandem.sink.store.contract.object_store import ObjectMissingError, PutResult
from tandem.sink.store.s3.client import S3Caller, UploadLostError

_PART_CHECKSUMS = {"ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256"}
_MAX_PARTS = 10_000
_RESTARTS = 3
_log = structlog.get_logger(__name__)


def crc32c_of(chunk: bytes) -> dict[str, Any]:
    """Return the request argument by which the store checks `chunk`."""
    return {"ChecksumCRC32C": base64.b64encode(google_crc32c.value(chunk).to_bytes(4, "big")).decode()}


class MultipartPut:
    """Uploads one body in parts of `part_size` bytes and completes them under `name` unless that exists.

    The store checks the condition at completion. An upload that isn't completed is aborted, whatever the error; if
    that fails as well, list_uploads finds it. `exists` returns whether the object exists. `extra` are arguments of the
    first request, such as encryption.
    """

    def __init__(
        self,
        caller: S3Caller,
        name: str,
        *,
        part_size: int,
        crc32c: bool,
        extra: dict[str, Any],
        exists: Callable[[], bool],
    ) -> None:
        self._caller = caller
        self._name = name
        self._part_size = part_size
        self._crc32c = crc32c
        self._extra = extra
        self._exists = exists

    def upload(self, view: memoryview) -> PutResult:
        """Upload and complete; begin anew, a few times, after a conflict or when the upload was aborted.

        Raises UploadLostError, which is transient, when that keeps happening.
        """
        for attempt in self._caller.attempts(UploadLostError, _RESTARTS):
            with attempt:
                return self._try(view)
        raise AssertionError("the last attempt returns or raises")

    def _try(self, view: memoryview) -> PutResult:
        part_size = max(self._part_size, -(-len(view) // _MAX_PARTS))
        upload_id = self._begin()
        outcome: PutResult | None = None
        try:
            parts = [
                self._upload(upload_id, number, bytes(view[start : start + part_size]))
                for number, start in enumerate(range(0, len(view), part_size), start=1)
            ]
            outcome = self._complete(upload_id, parts)
        finally:
            if outcome is not PutResult.CREATED:
                self._abort_quietly(upload_id)
        return outcome

    def _begin(self) -> str:
        algorithm: dict[str, Any] = {"ChecksumAlgorithm": "CRC32C"} if self._crc32c else {}
        return self._caller.call(
            f"begin the upload of {self._name!r}",
            lambda: self._caller.client.create_multipart_upload(
                Bucket=self._caller.bucket, Key=self._name, **algorithm, **self._extra
            )["UploadId"],
        )

    def _upload(self, upload_id: str, number: int, chunk: bytes) -> dict[str, Any]:
        checksum = crc32c_of(chunk) if self._crc32c else {}

        def upload() -> dict[str, Any]:
            answer = self._caller.client.upload_part(
                Bucket=self._caller.bucket,
                Key=self._name,
                UploadId=upload_id,
                PartNumber=number,
                Body=chunk,
                **checksum,
            )
            # The completion must repeat the checksum that the store keeps for the part.
            kept = {name: value for name, value in answer.items() if name in _PART_CHECKSUMS}
            return {"PartNumber": number, "ETag": answer["ETag"], **kept}

        return self._caller.call(f"upload part {number} of {self._name!r}", upload, {"NoSuchUpload": self._lose})

    def _complete(self, upload_id: str, parts: Sequence[Any]) -> PutResult:
        def complete() -> PutResult:
            self._caller.client.complete_multipart_upload(
                Bucket=self._caller.bucket,
                Key=self._name,
                UploadId=upload_id,
                IfNoneMatch="*",
                MultipartUpload={"Parts": parts},
            )
            return PutResult.CREATED

        return self._caller.call(
            f"complete the upload of {self._name!r}",
            complete,
            {412: lambda: PutResult.EXISTS, 409: self._lose, "NoSuchUpload": self._find_out},
        )

    def _find_out(self) -> PutResult:
        """Decide why the upload is gone: a completion whose answer was lost (EXISTS), or an abort (begin anew)."""
        return PutResult.EXISTS if self._exists() else self._lose()

    def _lose(self) -> NoReturn:
        raise UploadLostError(
            f"{self._caller.describe_action(f'upload {self._name!r}')}: the upload was aborted or met another one",
            code="TDM-S081",
            remedy="it is begun anew",
        )

    def _abort_quietly(self, upload_id: str) -> None:
        # The earlier error is raised, so this one is only logged.
        try:
            abort_upload(self._caller, self._name, upload_id)
        except TandemError as error:
            _log.warning("multipart upload left behind", key=self._name, bucket=self._caller.bucket, error=error)


def abort_upload(caller: S3Caller, name: str, upload_id: str) -> None:
    """Abort one upload; a missing one is no error."""
    with suppress(ObjectMissingError):
        caller.call(
            f"abort the upload of {name!r}",
            lambda: caller.client.abort_multipart_upload(Bucket=caller.bucket, Key=name, UploadId=upload_id),
        )
