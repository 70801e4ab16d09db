"""Keys of AWS KMS. Like `sink.aws` and the S3 client, it imports botocore.

One call returns a key that wraps the data keys of an hour; one call decrypts it again, for all of these objects. KMS
binds the key to pair and generation by its encryption context, and writes the context into its own log.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

import botocore.exceptions as vendor
from botocore.config import Config

from tandem.backup_avro.errors import DamagedError, TandemError
from tandem.backup_avro.record.chunk_cipher import KEY_SIZE
from tandem.backup_avro.record.envelope import LONGEST_WRAPPING_KEY
from tandem.sink.aws.aws_session import MISREAD, AwsSession, misread_at
from tandem.sink.aws.credential_agents import keep_answers_out_of_logs
from tandem.sink.encryption.encryption_settings import region_of
from tandem.sink.encryption.errors import KeyDeniedError, KeyUnavailableError
from tandem.sink.process import clock

_T = TypeVar("_T")
_FRESH_S: Final = 3600.0
_KEPT: Final = 1024
_CONFIG: Final = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "max_attempts": 4})
_BUSY: Final = frozenset(
    {"ThrottlingException", "KMSInternalException", "DependencyTimeoutException", "RequestTimeout", "Throttling"}
)
_NOT_OURS: Final = frozenset({"InvalidCiphertextException", "IncorrectKeyException"})
_CODE: Final = re.compile(r"[A-Za-z0-9.]{1,64}")
_ALLOW: Final = "allow kms:GenerateDataKey and kms:Decrypt on the key, and see that it is enabled"

keep_answers_out_of_logs()


class KmsKey:
    """A symmetric key of AWS KMS. Thread-safe. Credentials are looked up in the same places as by AWS SDKs.

    Raises KeyUnavailableError, KeyDeniedError, and DamagedError for a wrapping key that was not made by this key.
    """

    def __init__(
        self, arn: str, *, endpoint_url: str | None = None, monotonic: Callable[[], float] = clock.now
    ) -> None:
        self._arn = arn
        self._endpoint_url = endpoint_url
        self._monotonic = monotonic
        self._lock = threading.Lock()
        """Guards the keys in memory, and is never held during a call."""
        self._asking = threading.Lock()
        self._client: Any = None
        self._given: dict[tuple[str, int], tuple[float, bytes, bytes]] = {}
        self._opened: OrderedDict[tuple[bytes, str, int], bytes] = OrderedDict()

    @property
    def id(self) -> str:
        """16 hex digits of the ARN's SHA-256."""
        return hashlib.sha256(self._arn.encode()).hexdigest()[:16]

    @property
    def place(self) -> str:
        """The key's ARN."""
        return self._arn

    def new_wrapping_key(self, pair: str, generation: int) -> tuple[bytes, bytes]:
        """Return a key that is at most an hour old, and its ciphertext, which KMS decrypts."""

        def find() -> tuple[bytes, bytes] | None:
            at, plain, stored = self._given.get((pair, generation), (float("-inf"), b"", b""))
            return (plain, stored) if self._monotonic() - at < _FRESH_S else None

        def ask() -> tuple[bytes, bytes]:
            plain, stored = self._call(
                "generate_data_key",
                pair,
                generation,
                take=lambda answer: (_key_in(answer), _blob_in(answer)),
                KeySpec="AES_256",
            )
            now = self._monotonic()
            with self._lock:
                self._given = {key: given for key, given in self._given.items() if now - given[0] < _FRESH_S}
                self._given[pair, generation] = (now, plain, stored)
                self._keep((stored, pair, generation), plain)
            return plain, stored

        return self._find_or_request(find, ask)

    def wrapping_key(self, stored: bytes, pair: str, generation: int) -> bytes:
        """Return the key that KMS decrypts from `stored`."""

        def find() -> bytes | None:
            plain = self._opened.get((stored, pair, generation))
            if plain is not None:
                self._keep((stored, pair, generation), plain)
            return plain

        def ask() -> bytes:
            if not stored:
                raise DamagedError(f"it has no wrapping key, but key {self.id} is of a KMS", code="TDM-N010")
            plain = self._call("decrypt", pair, generation, take=_key_in, CiphertextBlob=stored)
            with self._lock:
                self._keep((stored, pair, generation), plain)
            return plain

        return self._find_or_request(find, ask)

    def _find_or_request(self, find: Callable[[], _T | None], ask: Callable[[], _T]) -> _T:
        """Return what `find` has in memory, else what `ask` gets from KMS, by one call at a time."""
        with self._lock:
            found = find()
        if found is None:
            with self._asking:
                with self._lock:
                    found = find()  # another thread may have asked meanwhile
                if found is None:
                    found = ask()
        return found

    def _keep(self, key: tuple[bytes, str, int], plain: bytes) -> None:
        self._opened[key] = plain
        self._opened.move_to_end(key)
        while len(self._opened) > _KEPT:
            self._opened.popitem(last=False)

    def _call(self, action: str, pair: str, generation: int, *, take: Callable[[Any], _T], **how: object) -> _T:
        """Call KMS and return the result of `take` on the answer. An unreadable answer is not from a KMS."""
        context = {"tandem:pair": pair, "tandem:generation": str(generation)}
        what = f"{action} with {self._arn}"
        try:
            if self._client is None:
                self._client = AwsSession().create_client(
                    "kms", region_name=region_of(self._arn), endpoint_url=self._endpoint_url, config=_CONFIG
                )
            return take(getattr(self._client, action)(KeyId=self._arn, EncryptionContext=context, **how))
        except vendor.ClientError as error:
            # Not chained: the error repeats the server's text, which may contain the request.
            raise _error_of(error, what) from None
        except (vendor.NoCredentialsError, vendor.PartialCredentialsError, vendor.ProfileNotFound):
            raise KeyDeniedError(
                f"{what}: no credentials for AWS",
                code="TDM-N011",
                remedy="set them where AWS SDKs look for them; store.* are not used",
            ) from None
        except vendor.BotoCoreError as error:
            raise KeyUnavailableError(
                f"{what}: {type(error).__name__}", code="TDM-N012", remedy="check that the KMS can be reached from here"
            ) from None
        except MISREAD as error:
            # Without the error's text: it may repeat the answer, which may be the key.
            raise KeyUnavailableError(
                f"{what}: the answer is none of a KMS ({misread_at(error)})",
                code="TDM-N013",
                remedy="check encryption.aws_kms_endpoint_url, and proxies on the way",
            ) from None


def _key_in(answer: Any) -> bytes:  # noqa: ANN401 (as the SDK's)
    return _sized(answer["Plaintext"], KEY_SIZE, KEY_SIZE)


def _blob_in(answer: Any) -> bytes:  # noqa: ANN401 (as the SDK's)
    # With an empty ciphertext no other process could open the objects.
    return _sized(answer["CiphertextBlob"], 1, LONGEST_WRAPPING_KEY)


def _sized(value: object, least: int, most: int) -> bytes:
    if not isinstance(value, bytes) or not least <= len(value) <= most:
        raise ValueError("no key")
    return value


def _error_of(error: vendor.ClientError, what: str) -> TandemError:
    said: object = error.response.get("Error", {}).get("Code", "")
    code = said if isinstance(said, str) and _CODE.fullmatch(said) else "no code"
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _NOT_OURS:
        return DamagedError(
            f"its wrapping key was changed, or is of another pair or generation ({code})", code="TDM-N014"
        )
    if code in _BUSY or status >= 500 or status == 429:
        return KeyUnavailableError(f"{what}: {code}", code="TDM-N015", remedy="the KMS is busy; it is tried again")
    return KeyDeniedError(f"{what}: {code}", code="TDM-N016", remedy=_ALLOW)
