"""Opens the store at a URL."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from tandem.backup_avro.errors import ConfigError
from tandem.sink.encryption.key_ring import KeyRing
from tandem.sink.store.contract.object_keys import check_key
from tandem.sink.store.contract.object_store import BadKeyError, ObjectStore
from tandem.sink.store.contract.store_settings import BUCKET, CONTAINER, OTHER_NAMES, StoreAccess
from tandem.sink.store.file_store import FileStore
from tandem.sink.store.signed_store import SignedStore

_FORMS = "write s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder"


def open_store(url: str, settings: StoreAccess | None = None, *, place: str = "store url") -> ObjectStore:
    """Open the store at `s3://bucket[/prefix]`, `gs://…`, `az://container[/prefix]` or `file:///folder`.

    No request is sent yet: `probe` checks access. Documents in it are signed and checked by the settings; keys of their
    `encryption` are not read before they are needed. Raises ConfigError, which names `place`, where the user wrote the
    URL.
    """
    settings = settings or StoreAccess()
    return SignedStore(open_adapter(url, settings, place=place), settings)


def open_adapter(url: str, settings: StoreAccess, *, place: str = "store url") -> ObjectStore:
    """Open the same store as `open_store`, without signing or checking documents. Raises ConfigError."""
    keys = KeyRing(settings.encryption)
    if url != url.strip() or any(char < " " or char == "\x7f" for char in url):  # `urlsplit` drops some of them
        raise ConfigError(
            f"{place}: a blank at one end, or a control character", code="TDM-S045", remedy=f"take it out; {_FORMS}"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # The message leaves out the URL: a URL that can't be parsed can't be checked for secrets.
        raise ConfigError(f"{place}: not a URL", code="TDM-S046", remedy=_FORMS) from None
    if parts.username is not None or "@" in parts.netloc:
        raise ConfigError(
            f"{place}: holds a user or password",
            code="TDM-S047",
            remedy="take it out; keys go into access_key_id and secret_access_key, or into the environment",
        )
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise ConfigError(f"{place}: a store URL has no query or fragment", code="TDM-S048", remedy=_FORMS)
    if parts.scheme == "file":
        return _open_file(url, host=parts.netloc, path=parts.path, place=place, keys=keys)
    if parts.scheme in {"s3", "gs", "az"}:
        valid = CONTAINER if parts.scheme == "az" else BUCKET
        if port is not None or not valid.fullmatch(parts.netloc):
            raise ConfigError(f"{place}: {url!r} names no valid bucket", code="TDM-S049", remedy=_FORMS)
        prefix = parts.path.removeprefix("/").removesuffix("/")
        try:
            if prefix:
                check_key(prefix)
        except BadKeyError as error:
            raise ConfigError(
                f"{place}: {url!r} has no valid prefix: {error}", code="TDM-S050", remedy=_FORMS
            ) from error
        # The libraries of the clouds take long to load, and a file store does not need them.
        if parts.scheme == "s3":
            from tandem.sink.store.s3.s3_store import S3Store  # noqa: PLC0415 (loaded only where it is used)

            return S3Store(parts.netloc, prefix, settings, url=url, keys=keys)
        from tandem.sink.store.cloud_client import CloudPlace  # noqa: PLC0415 (as above)
        from tandem.sink.store.cloud_store import CloudStore  # noqa: PLC0415 (as above)

        cloud = CloudPlace(scheme="gs" if parts.scheme == "gs" else "az", bucket=parts.netloc)
        return CloudStore(cloud, prefix, settings, url=url, keys=keys)
    if parts.scheme in OTHER_NAMES:
        raise ConfigError(
            f"{place}: {parts.scheme}:// is not a store URL: {OTHER_NAMES[parts.scheme]}",
            code="TDM-S051",
            remedy=_FORMS,
        )
    raise ConfigError(f"{place}: {url!r} is none of s3://, gs://, az:// and file://", code="TDM-S052", remedy=_FORMS)


def _open_file(url: str, *, host: str, path: str, place: str, keys: KeyRing) -> ObjectStore:
    if host not in {"", "localhost"}:
        raise ConfigError(
            f"{place}: {url!r} names a host, {host!r}", code="TDM-S053", remedy="write three slashes: file:///folder"
        )
    folder = folder_of(path)
    if folder is None:
        raise ConfigError(f"{place}: {url!r} names no folder", code="TDM-S054", remedy=_FORMS)
    return FileStore(folder, url=url, keys=keys)


def folder_of(path: str) -> str | None:
    """Return the folder that the path of a `file://` URL names, None if it names none. %20 is a blank."""
    try:
        folder = unquote(path, errors="strict")
    except UnicodeDecodeError:
        return None
    return None if not folder.startswith("/") or not folder.strip("/") or "\0" in folder else folder
