"""The file store, `file:///folder`: for trying Tandem out and for tests.

An object is a file, a folder a directory. Put-if-absent is a temporary file, fsync and `link()`, which fails if the
name is taken; so a reader sees the whole object or none. Temporary files lie in `<root>/.tandem-uploads`, in the same
tree of folders as their keys; a file there without a running writer is a stray upload.
"""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tandem.backup_avro.errors import TandemError
from tandem.sink.encryption.key_ring import NO_KEYS, KeyRing
from tandem.sink.process import clock
from tandem.sink.store.contract.object_keys import check_folder, check_key, check_prefix, check_range, is_key
from tandem.sink.store.contract.object_store import (
    ObjectInfo,
    ObjectMissingError,
    PutResult,
    StoreDeniedError,
    StoreMissingError,
    StoreTransientError,
    StoreUnfitError,
    UploadInfo,
    check_size,
)
from tandem.sink.store.contract.probe import probe_key, probe_put_if_absent
from tandem.sink.store.contract.store_clock import StoreClock

_MAX_SKEW = timedelta(minutes=5)
_UPLOADS = ".tandem-uploads"
_NAME_MAX = 255
"""Bytes that one name may have on the usual file systems."""
_RACE_LIMIT = 1000
"""How often a put makes its folders again while deletes keep removing them, before it gives up."""
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_REMEDIES = {
    errno.EACCES: "give this user read, write and search permission on the folder",
    errno.EPERM: "give this user read, write and search permission on the folder",
    errno.EROFS: "mount the file system writable",
    errno.ELOOP: "take the symbolic link out of the store",
    errno.ENOSPC: "free space on the disk; it goes on by itself",
    errno.EDQUOT: "free space or raise the quota; it goes on by itself",
    errno.EMFILE: "raise the limit of open files",
    errno.EIO: "check the disk",
}


class FileStore:
    """Objects below the folder `root`, which must exist: a disk that is not mounted must not look like an empty one.

    Symbolic links below the root are never followed. `keys` serve the callers that read and write data
    objects; the store itself does not use them.
    """

    def __init__(self, root: str | os.PathLike[str], *, url: str | None = None, keys: KeyRing = NO_KEYS) -> None:
        self.keys = keys
        self._root = Path(os.path.realpath(root))
        self._uploads = self._root / _UPLOADS
        self._url = url if url is not None else self._root.as_uri()
        self._clock = StoreClock()

    @property
    def url(self) -> str:
        """The root as the user wrote it."""
        return self._url

    def put_if_absent(self, key: str, body: bytes | bytearray | memoryview) -> PutResult:
        """Create `key` unless it exists; durable when it returns (file and folder are synced), also if it existed.

        A full disk is StoreTransientError, as space may come back.
        """
        path = self._path(check_key(key))
        with self._errors("put", key):
            if self._is_taken(path, key):
                # The put that made it may have failed to sync the folders, and is now repeated.
                for folder in path.parents[: len(path.relative_to(self._root).parts)]:
                    _sync_folder(folder)
                return PutResult.EXISTS
            temporary, descriptor = self._create_temporary(key)
            made: set[Path] = set()
            try:
                _write_all(descriptor, memoryview(body).cast("B"))
                os.fsync(descriptor)
                self._observe(descriptor)
                outcome = self._link(temporary, path, key, descriptor, made)
            finally:
                os.close(descriptor)
                temporary.unlink(missing_ok=True)
            # Synced only now: until the object is in them, a delete may remove the folders again.
            for folder in {path.parent, *(new.parent for new in made)}:
                _sync_folder(folder)
            return outcome

    def get(self, key: str, *, start: int = 0, end: int | None = None, most: int | None = None) -> bytes:
        """Return bytes [start, end) of `key`."""
        check_range(start, end)
        path = self._path(check_key(key))
        with self._errors("get", key):
            try:
                # A pipe without a writer would hold the reader for ever.
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            except (FileNotFoundError, NotADirectoryError):
                raise self._missing(key) from None
            except OSError as error:
                if error.errno == errno.ENXIO:
                    self._require_file(stat.S_IFSOCK, key)
                raise
            try:
                status = os.fstat(descriptor)
                if stat.S_ISDIR(status.st_mode):
                    raise self._missing(key)
                self._require_file(status.st_mode, key)
                check_size(key, min(status.st_size, status.st_size if end is None else end) - start, most)
                with os.fdopen(descriptor, "rb", closefd=False) as file:
                    file.seek(start)
                    return file.read() if end is None else file.read(end - start)
            finally:
                os.close(descriptor)

    def head(self, key: str) -> ObjectInfo | None:
        """Return size and time of `key`, or None."""
        path = self._path(check_key(key))
        with self._errors("head", key):
            try:
                status = path.lstat()
            except (FileNotFoundError, NotADirectoryError):
                self._require_root()
                return None
            return _info(key, status) if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield objects in ascending key order over all folders; holds the names of one folder per level."""
        folder = check_prefix(prefix).rpartition("/")[0]
        self._path(folder + "/x" if folder else "x")
        self._require_root()
        return self._walk(folder + "/" if folder else "", prefix, after or "")

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders below `prefix` that hold an object at some depth."""
        self._path(check_folder(prefix) + "x")
        self._require_root()
        return self._walk_folders(prefix)

    def list_files(self, prefix: str) -> Iterator[str]:
        """Yield the names of the objects in one folder."""
        self._path(check_folder(prefix) + "x")
        self._require_root()
        return self._walk_files(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete keys, then the folders that became empty. A put whose folder has vanished makes it again."""
        self._require_root()
        folders: set[str] = set()
        failure: TandemError | None = None
        for key in keys:
            check_key(key)
            try:
                with self._errors("delete", key):
                    _unlink(self._path(key))
            except TandemError as error:
                failure = failure or error
            folders.add(key.rpartition("/")[0])
        for folder in sorted(folders, reverse=True):
            with self._errors("delete", folder):
                self._prune(self._uploads, folder)
                _sync_folder(self._prune(self._root, folder))
        if failure is not None:
            raise failure

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """Yield the temporary files of puts below `prefix`, those of running puts among them.

        Of a name near the limit of 255 bytes only the beginning is yielded.
        """
        check_prefix(prefix)
        self._require_root()
        for relative, status in self._scan(self._uploads, "", prefix, "", "list uploads"):
            key = relative.rpartition("~")[0]
            if key.startswith(prefix):
                initiated = datetime.fromtimestamp(status.st_mtime, UTC)
                yield UploadInfo(key=key, upload_id=relative, initiated=initiated)

    def abort_upload(self, upload: UploadInfo) -> None:
        """Remove one temporary file; a put that still runs fails with StoreTransientError."""
        relative = check_key(upload.upload_id)
        self._path(relative)
        with self._errors("abort upload", upload.key):
            _unlink(self._uploads / relative)
            self._prune(self._uploads, relative.rpartition("/")[0])

    def now(self) -> datetime:
        """The file system's clock, which stamps objects and is common to all hosts that share the folder.

        The first call writes a temporary file if no object was put before. Without the right to write, the local time
        is returned.
        """
        found = self._clock.now(at=clock.now())
        if found is None:
            with suppress(OSError, TandemError):
                temporary, descriptor = self._create_temporary("clock")
                try:
                    _write_all(descriptor, memoryview(b"x"))
                    os.fsync(descriptor)
                    self._observe(descriptor)
                finally:
                    os.close(descriptor)
                    temporary.unlink(missing_ok=True)
            found = self._clock.now(at=clock.now())
        return datetime.now(UTC) if found is None else found

    def _observe(self, descriptor: int) -> None:
        """Set the clock by the time of a file just written, which the file system, maybe a server, has stamped."""
        self._clock.observe(datetime.fromtimestamp(os.fstat(descriptor).st_mtime, UTC), at=clock.now())

    def probe(self, prefix: str) -> tuple[str, ...]:
        """Check that the folder is writable, links work, and names differ by case."""
        self._require_root()
        key = probe_key(check_prefix(prefix))
        try:
            probe_put_if_absent(self, key, secrets.token_bytes(32))
            folder, _, name = key.rpartition("/")
            twin = f"{folder}/{name.upper()}" if folder else name.upper()
            warnings = []
            if self.head(twin) is not None:
                warnings.append(f"{self._url}: names do not differ by case here, so topics must not either")
        finally:
            self.delete([key, key + "-race"])
        if abs(self.now() - datetime.now(UTC)) > _MAX_SKEW:
            warnings.append(f"{self._url}: the folder's clock and this host's differ by more than 5 minutes; use NTP")
        return tuple(warnings)

    def close(self) -> None:
        """Do nothing: the store holds no file open."""

    def _path(self, key: str) -> Path:
        """Return the path of a checked key; no symbolic link is on the way."""
        path = self._root / key
        if os.path.realpath(path.parent) != str(path.parent):
            raise StoreDeniedError(
                f"{self._url}: a symbolic link lies on the way to {key!r}",
                code="TDM-S024",
                remedy=_REMEDIES[errno.ELOOP],
            )
        return path

    def _is_taken(self, path: Path, key: str) -> bool:
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            self._require_root()
            return False
        except NotADirectoryError:
            raise self._clash(key) from None
        if stat.S_ISDIR(mode):
            raise self._clash(key)
        self._require_file(mode, key)
        return True

    def _create_temporary(self, key: str) -> tuple[Path, int]:
        folder, _, name = key.rpartition("/")
        if len(name.encode()) > _NAME_MAX:
            raise StoreUnfitError(
                f"{self._url}: the name {name[:60]!r}… is longer than {_NAME_MAX} bytes",
                code="TDM-S025",
                remedy="file systems allow no longer name; use s3:// for topics with names this long",
            )
        nonce = secrets.token_hex(8)
        kept = name.encode()[: _NAME_MAX - len(nonce) - 1].decode(errors="ignore")
        parent = self._uploads / folder
        path = parent / f"{kept}~{nonce}"
        for _ in range(_RACE_LIMIT):
            try:
                return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                self._make_folder(parent, set())
        raise self._starved(key)

    def _link(self, temporary: Path, path: Path, key: str, descriptor: int, made: set[Path]) -> PutResult:
        for _ in range(_RACE_LIMIT):
            try:
                os.link(temporary, path, follow_symlinks=False)
            except FileExistsError:
                # On a network file system the answer to a link that worked can be lost; the link count shows it.
                if os.fstat(descriptor).st_nlink > 1:
                    return PutResult.CREATED
                self._is_taken(path, key)  # raises if a folder has the name
                return PutResult.EXISTS
            except FileNotFoundError:
                if not os.path.lexists(temporary):
                    raise StoreTransientError(
                        f"{self._url}: the upload of {key!r} was aborted by someone else",
                        code="TDM-S026",
                        remedy="put it again",
                    ) from None
                self._make_folder(path.parent, made)
            except NotADirectoryError:
                raise self._clash(key) from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise StoreUnfitError(
                    f"{self._url}: the file system refuses hard links ({error.strerror}) for {key!r}",
                    code="TDM-S027",
                    remedy="use a local file system such as ext4, xfs or apfs, one for the whole folder",
                ) from error
            else:
                return PutResult.CREATED
        raise self._starved(key)

    def _make_folder(self, folder: Path, made: set[Path]) -> None:
        """Make `folder` and its parents up to the root; add the new ones to `made`.

        Deletes may remove any of them again at once: the caller notices that and calls again.
        """
        try:
            folder.mkdir()
        except FileExistsError:
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(folder.lstat().st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
            return
        except FileNotFoundError:
            if folder.parent == self._root:
                self._require_root()
            self._make_folder(folder.parent, made)
            with suppress(FileNotFoundError, FileExistsError):
                folder.mkdir()
        made.add(folder)

    def _prune(self, top: Path, folder: str) -> Path:
        """Remove `folder` (relative to `top`) and its parents while they are empty; return the lowest that remains."""
        while folder:
            try:
                (top / folder).rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY}:
                    raise
                break
            folder = folder.rpartition("/")[0]
        return top / folder

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        for key, status in self._scan(self._root, folder, prefix, after, "list"):
            if is_key(key):
                yield _info(key, status)

    def _walk_folders(self, prefix: str) -> Iterator[str]:
        # Key order has `a-b/` before `a/`; folders are ordered by name alone.
        folders = (name[:-1] for name in self._names(self._root, prefix, "list folders") if name.endswith("/"))
        for name in sorted(folders):
            below = f"{prefix}{name}/"
            if next(self._walk(below, below, ""), None) is not None:
                yield name

    def _walk_files(self, prefix: str) -> Iterator[str]:
        for name in self._names(self._root, prefix, "list files"):
            if not name.endswith("/") and is_key(prefix + name) and self.head(prefix + name) is not None:
                yield name

    def _scan(
        self, top: Path, folder: str, prefix: str, after: str, action: str
    ) -> Iterator[tuple[str, os.stat_result]]:
        for name in self._names(top, folder, action):
            path = folder + name
            if name.endswith("/"):
                # All keys of a folder compare to `after` as the folder does, unless `after` lies inside it.
                wanted = path.startswith(prefix) or prefix.startswith(path)
                if wanted and (path > after or after.startswith(path)):
                    yield from self._scan(top, path, prefix, after, action)
            elif path.startswith(prefix) and path > after:
                with self._errors(action, path):
                    try:
                        status = (top / path).lstat()
                    except (FileNotFoundError, NotADirectoryError):
                        continue  # deleted since the folder was read
                if stat.S_ISREG(status.st_mode):
                    yield path, status

    def _names(self, top: Path, folder: str, action: str) -> Sequence[str]:
        """Return the names in one folder in key order, folders with their slash; a missing folder has none."""
        with self._errors(action, folder):
            try:
                with os.scandir(top / folder) as entries:
                    names = [
                        entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
                        for entry in entries
                        if folder or top != self._root or not entry.name.startswith(".")
                    ]
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(names)

    def _require_root(self) -> None:
        try:
            found = self._root.is_dir()
        except PermissionError as error:
            raise StoreDeniedError(
                f"{self._url}: the folder can't be reached: {error.strerror}",
                code="TDM-S028",
                remedy=_REMEDIES[errno.EACCES],
            ) from error
        if not found:
            raise StoreMissingError(
                f"{self._url}: the folder does not exist",
                code="TDM-S029",
                remedy=f"mount it, or make it: mkdir -p {shlex.quote(str(self._root))}",
            )

    def _require_file(self, mode: int, key: str) -> None:
        """Raise StoreUnfitError for a pipe, a socket, a device or a link: nothing is read or written there."""
        if not stat.S_ISREG(mode):
            raise StoreUnfitError(
                f"{self._url}: {key!r} is no regular file",
                code="TDM-S030",
                remedy="find out what made it, and take it out of the store",
            )

    def _missing(self, key: str) -> TandemError:
        self._require_root()
        return ObjectMissingError(
            f"{self._url}: no object {key!r}",
            code="TDM-S031",
            remedy="check whether it was deleted, and that the URL is right",
        )

    def _clash(self, key: str) -> TandemError:
        return StoreUnfitError(
            f"{self._url}: {key!r} is a folder, or lies below an object",
            code="TDM-S032",
            remedy="no key may be another key's folder",
        )

    def _starved(self, key: str) -> TandemError:
        return StoreTransientError(
            f"{self._url}: the folder of {key!r} kept being removed", code="TDM-S033", remedy="stop what deletes there"
        )

    @contextmanager
    def _errors(self, action: str, key: str) -> Iterator[None]:
        """Turn OSError into errors of the store."""
        try:
            yield
        except OSError as error:
            what = f"{self._url}: {action} of {key!r} failed: {error.strerror or type(error).__name__}"
            code = error.errno or 0
            remedy = _REMEDIES.get(code, "check the folder and its file system")
            if code in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP}:
                raise StoreDeniedError(what, code="TDM-S034", remedy=remedy) from error
            if code in {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EFBIG}:
                raise StoreUnfitError(
                    what, code="TDM-S035", remedy="this file system can't hold it; use another or s3://"
                ) from error
            self._require_root()
            raise StoreTransientError(what, code="TDM-S036", remedy=remedy) from error


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key=key, size=status.st_size, modified=datetime.fromtimestamp(status.st_mtime, UTC))


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    except PermissionError:
        # Some systems raise this for a folder; a folder is no object.
        if not path.is_dir():
            raise


def _write_all(descriptor: int, body: memoryview) -> None:
    while body:
        body = body[os.write(descriptor, body) :]


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return  # removed meanwhile, so it need not be durable
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
