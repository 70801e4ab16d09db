"""A store that signs documents on put and checks their signatures on get. Other objects pass through.

Documents are the basis of decisions: claims and chain entries, releases, pauses, checkpoints, offers of a catch-up job.
Data objects need no signature, because the chain names their SHA-256.

The store also refuses documents, on put and on get, that are larger than the limit of their kind.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from tandem.backup_avro.chain.document_limits import most_bytes
from tandem.backup_avro.chain.layout import is_signed
from tandem.backup_avro.chain.signatures import Signer, Trust
from tandem.backup_avro.errors import ConfigError, OversizeError
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.process import safe_text
from tandem.sink.store.contract.former_versions import FormerVersions, versions_of
from tandem.sink.store.contract.lifecycle_rules import LifecycleRule, lifecycle_rules
from tandem.sink.store.contract.object_store import ObjectInfo, ObjectStore, PutResult, UploadInfo
from tandem.sink.store.contract.store_settings import StoreAccess

_LARGEST_KEY = 10_000
"""Most bytes read of a private key's file. A valid one has a hundred and twenty."""


def load_signer(settings: StoreAccess) -> Signer | None:
    """Return the signer for the private key that the settings name, None if they name none. Raises ConfigError."""
    if settings.signing_key_env is not None:
        text = os.environ.get(settings.signing_key_env)
        place = f"environment variable {settings.signing_key_env}"
        if text is None:
            raise ConfigError(
                f"{place} is not set",
                code="TDM-S085",
                remedy="signing.key_env names it: set it to a private key in PEM",
            )
        safe_text.register_secrets([text])
        return Signer.of_pem(text.encode(), place)
    if settings.signing_key_file is None:
        return None
    try:
        with Path(settings.signing_key_file).open("rb") as file:
            data = file.read(_LARGEST_KEY)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it can't be read"
        raise ConfigError(
            f"signing key {settings.signing_key_file}: {why}",
            code="TDM-S086",
            remedy="correct signing.key_file, or mount the file",
        ) from None
    safe_text.register_secrets([data.decode(errors="replace")])
    return Signer.of_pem(data, f"signing key {settings.signing_key_file}")


class SignedStore:
    """Signs and checks documents (see the module). The private key is read at its first use: readers need none.

    Beside the errors of the store, `get` raises SignatureError, and `put_if_absent` ConfigError if it can't sign.
    """

    def __init__(self, inner: ObjectStore, settings: StoreAccess) -> None:
        self._inner = inner
        self.keys = keys_of(inner)
        self._settings = settings
        self._trust = Trust.of(settings.trusted, require=settings.require_signatures)
        self._lock = threading.Lock()
        self._signer: Signer | None = None

    @property
    def url(self) -> str:
        """See ObjectStore."""
        return self._inner.url

    @property
    def versions(self) -> FormerVersions | None:
        """The former versions of the store's objects."""
        return versions_of(self._inner)

    def lifecycle_rules(self, prefix: str) -> Sequence[LifecycleRule] | None:
        """See StoreWithLifecycle."""
        return lifecycle_rules(self._inner, prefix)

    def signer(self) -> Signer | None:
        """Return the signer, None if documents are not signed. Raises ConfigError for a key that can't be used."""
        if self._settings.signing_key_file is None and self._settings.signing_key_env is None:
            return None
        with self._lock:
            if self._signer is None:
                signer = load_signer(self._settings)
                if signer is not None and self._trust.keys and signer.id not in self._trust.keys:
                    raise ConfigError(
                        f"the signing key {signer.id} is not among signing.trusted: no reader "
                        f"would accept its signatures",
                        code="TDM-S087",
                        remedy=f"add {signer.public}",
                    )
                self._signer = signer
            return self._signer

    def put_if_absent(self, key: str, body: bytes | bytearray | memoryview) -> PutResult:
        """See ObjectStore."""
        signer = self.signer_for(key) if is_signed(key) else None
        data = body if signer is None else signer.seal(key, bytes(body))
        most = most_bytes(key)
        if most is not None and len(data) > most:
            raise OversizeError(
                f"{key} would have {len(data)} bytes, and readers accept at most {most} there",
                code="TDM-S088",
                remedy="back up fewer partitions with one pair, or shorten the reason",
            )
        return self._inner.put_if_absent(key, data)

    def signer_for(self, what: str) -> Signer | None:
        """Return the signer, None if documents are not signed; ConfigError names `what` if a signature is required."""
        signer = self.signer()
        if signer is None and self._trust.require:
            raise ConfigError(
                f"{what} would not be signed, and signing.require is set",
                code="TDM-S089",
                remedy="set signing.key_file or signing.key_env: a writer needs a private key",
            )
        return signer

    def get(self, key: str, *, start: int = 0, end: int | None = None, most: int | None = None) -> bytes:
        """See ObjectStore. A document above the limit of its kind is not read."""
        most = most_bytes(key) if most is None else most
        if not is_signed(key):
            return self._inner.get(key, start=start, end=end, most=most)
        return self._trust.open(key, self._inner.get(key, most=most))[start:end]

    def head(self, key: str) -> ObjectInfo | None:
        """See ObjectStore. The size is that of the stored bytes."""
        return self._inner.head(key)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        return self._inner.list(prefix, after=after)

    def list_folders(self, prefix: str) -> Iterator[str]:
        """See ObjectStore."""
        return self._inner.list_folders(prefix)

    def list_files(self, prefix: str) -> Iterator[str]:
        """See ObjectStore."""
        return self._inner.list_files(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """See ObjectStore."""
        self._inner.delete(keys)

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """See ObjectStore."""
        return self._inner.list_uploads(prefix)

    def abort_upload(self, upload: UploadInfo) -> None:
        """See ObjectStore."""
        self._inner.abort_upload(upload)

    def now(self) -> datetime:
        """See ObjectStore."""
        return self._inner.now()

    def probe(self, prefix: str) -> tuple[str, ...]:
        """See ObjectStore. Raises ConfigError if documents put here must be signed and can't be."""
        self.signer_for(prefix)
        return self._inner.probe(prefix)

    def close(self) -> None:
        """See ObjectStore."""
        self._inner.close()


def signer_of(store: object, what: str) -> Signer | None:
    """Return the store's signer to sign `what`, which does not go to the store. Raises ConfigError."""
    return store.signer_for(what) if isinstance(store, SignedStore) else None
