"""The file store's own matters: durability of names, races with deletes, and what the operating system refuses."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tandem.backup_avro.errors import TandemError
from tandem.sink.store import (
    ObjectMissingError,
    PutResult,
    StoreDeniedError,
    StoreMissingError,
    StoreTransientError,
    StoreUnfitError,
)
from tandem.sink.store.file_store import FileStore


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def files(root: Path) -> list[str]:
    """Every file and folder below, hidden ones too, folders with a slash."""
    return sorted(str(path.relative_to(root)) + ("/" if path.is_dir() else "") for path in root.rglob("*"))


def test_only_the_object_is_left(store: FileStore, tmp_path: Path) -> None:
    """After a put no temporary file, after a delete no folder of the key."""
    store.put_if_absent("a/b/c", b"x")
    assert [name for name in files(tmp_path) if not name.startswith(".tandem-uploads/")] == ["a/", "a/b/", "a/b/c"]
    assert [name for name in files(tmp_path / ".tandem-uploads") if not name.endswith("/")] == []
    store.delete(["a/b/c"])
    assert files(tmp_path) == [".tandem-uploads/"]


def test_a_delete_stops_at_what_others_keep(store: FileStore, tmp_path: Path) -> None:
    """Folders that hold anything stay, and so does the root."""
    store.put_if_absent("a/b/c", b"x")
    (tmp_path / "a" / "note.txt").write_text("mine")
    store.delete(["a/b/c"])
    assert (tmp_path / "a" / "note.txt").exists()
    assert not (tmp_path / "a" / "b").exists()
    store.delete(["a/note.txt"])
    assert tmp_path.exists()


KILLED = """
import os, sys
from tandem.sink.store.file_store import FileStore
def die(*_, **__): os._exit(9)
os.{call} = die
FileStore(sys.argv[1]).put_if_absent("a/b", b"x" * 100000)
"""


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_killed_put_leaves_a_stray_upload_and_no_object(store: FileStore, tmp_path: Path, call: str) -> None:
    """The writer dies before the data is safe, or just before it gets its name."""
    done = subprocess.run([sys.executable, "-c", KILLED.format(call=call), str(tmp_path)], check=False)
    assert done.returncode == 9
    assert store.head("a/b") is None
    assert list(store.list("")) == []
    (stray,) = store.list_uploads("a/")
    assert stray.key == "a/b"
    assert store.put_if_absent("a/b", b"anew") is PutResult.CREATED
    store.abort_upload(stray)
    assert list(store.list_uploads("")) == []


def test_data_is_synced_before_it_has_a_name_and_the_name_after(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut could leave a name without data, or data without a name, after CREATED was told."""
    events: list[int | str] = []
    fsync, link = os.fsync, os.link

    def watched_fsync(descriptor: int) -> None:
        events.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def watched_link(source: Path, target: Path, *, follow_symlinks: bool = True) -> None:
        link(source, target, follow_symlinks=follow_symlinks)
        events.append("link")

    def inode(path: str) -> int:
        return (tmp_path / path).stat().st_ino

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "link", watched_link)
    assert store.put_if_absent("a/b/c", b"x") is PutResult.CREATED
    assert events[:2] == [inode("a/b/c"), "link"]
    # The object's folder, and the folders above it that hold the new folders' names.
    assert set(events[2:]) == {inode("a/b"), inode("a"), inode("")}
    events.clear()
    assert store.put_if_absent("a/b/d", b"x") is PutResult.CREATED
    assert events == [inode("a/b/d"), "link", inode("a/b")]


def test_a_put_that_is_repeated_syncs_what_the_first_one_did_not(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object has its name after a failed sync of the folders; EXISTS promises as much as CREATED."""
    fsync = os.fsync
    synced: list[int] = []

    def disk_error(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    def watched_fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", disk_error)
    with pytest.raises(TandemError):
        store.put_if_absent("a/b/c", b"x")
    with pytest.raises(TandemError):
        store.put_if_absent("a/b/c", b"x")
    monkeypatch.setattr(os, "fsync", watched_fsync)
    assert store.put_if_absent("a/b/c", b"x") is PutResult.EXISTS
    assert synced == [(tmp_path / folder).stat().st_ino for folder in ("a/b", "a", "")]


def test_a_put_survives_folders_that_vanish_under_it(store: FileStore, tmp_path: Path) -> None:
    """While another thread removes every empty folder it finds, in both trees, all puts succeed."""
    stop = threading.Event()

    def sweep() -> None:
        while not stop.is_set():
            for folder in ("k/l/m", "k/l", "k", ".tandem-uploads/k/l/m", ".tandem-uploads/k/l", ".tandem-uploads/k"):
                try:
                    (tmp_path / folder).rmdir()
                except OSError:
                    continue
            time.sleep(0.0005)  # without a breath the sweeper keeps the interpreter to itself, and puts may starve

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for number in range(60):
            assert store.put_if_absent(f"k/l/m/{number}", b"x") is PutResult.CREATED
            if number % 3:
                store.delete([f"k/l/m/{number}"])
    finally:
        stop.set()
        sweeper.join()
    assert len(list(store.list("k/l/m/"))) == 20


def test_a_listing_goes_on_while_files_come_and_go(store: FileStore) -> None:
    """What is there all the time is listed once; what goes meanwhile is no error."""
    for number in range(60):
        store.put_if_absent(f"f{number % 3}/{number:03d}", b"x")
    seen = []
    for info in store.list(""):
        seen.append(info.key)
        if len(seen) == 5:
            store.delete([f"f1/{number:03d}" for number in range(1, 60, 3)])
            store.put_if_absent("f2/zzz", b"x")
    assert seen == sorted(seen)
    assert {key for key in seen if key.startswith("f0/")} == {f"f0/{number:03d}" for number in range(0, 60, 3)}
    assert "f2/zzz" in seen


def test_an_aborted_put_says_so(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its temporary file was taken away before it got its name: nothing is created, and it may be tried again."""
    fsync = os.fsync

    def abort_then_sync(descriptor: int) -> None:
        fsync(descriptor)
        for upload in list(store.list_uploads("")):
            store.abort_upload(upload)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", abort_then_sync)
        with pytest.raises(StoreTransientError, match=r"'a/b' was aborted .*\(put it again\)"):
            store.put_if_absent("a/b", b"x")
    assert store.head("a/b") is None
    assert store.put_if_absent("a/b", b"x") is PutResult.CREATED


def test_a_link_whose_answer_was_lost_is_ours(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network file systems may do the link, lose the answer and find the name taken on their own retry."""
    link = os.link

    def link_twice(source: Path, target: Path, *, follow_symlinks: bool = True) -> None:
        link(source, target, follow_symlinks=follow_symlinks)
        link(source, target, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "link", link_twice)
    assert store.put_if_absent("a/b", b"x") is PutResult.CREATED
    assert store.put_if_absent("a/b", b"y") is PutResult.EXISTS
    assert store.get("a/b") == b"x"


def test_an_object_and_a_folder_cannot_share_a_name(store: FileStore) -> None:
    """Refused with a remedy, never EXISTS for an object that isn't there."""
    store.put_if_absent("a/b", b"x")
    for key in ("a", "a/b/c", "a/b/c/d"):
        with pytest.raises(StoreUnfitError, match="TDM-S032"):
            store.put_if_absent(key, b"x")
    assert [info.key for info in store.list("")] == ["a/b"]


def test_a_name_too_long_for_the_file_system(store: FileStore) -> None:
    """Kafka allows topics of 249 characters; with offsets and nonce their objects' names pass 255 bytes."""
    topic = "t" * 249
    with pytest.raises(StoreUnfitError, match=r"longer than 255 bytes .*s3://"):
        store.put_if_absent(f"{topic}/{topic}+0+{0:020d}+{1:020d}+0123456789abcdef.avro", b"x")
    assert store.put_if_absent("n" * 255, b"x") is PutResult.CREATED


def test_symbolic_links_are_not_followed(store: FileStore, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Neither a folder nor an object that is a link leads out of the root, to read, write, list or delete."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("s")
    root = Path(store.url.removeprefix("file://"))
    (root / "folder").symlink_to(outside)
    (root / "object").symlink_to(outside / "secret")
    for call in (
        lambda: store.get("folder/secret"),
        lambda: store.head("folder/secret"),
        lambda: store.put_if_absent("folder/new", b"x"),
        lambda: store.delete(["folder/secret"]),
        lambda: list(store.list("folder/")),
        lambda: list(store.list_folders("folder/")),
        lambda: list(store.list_files("folder/")),
        lambda: store.get("object"),
    ):
        with pytest.raises(StoreDeniedError, match="symbolic link"):
            call()
    assert store.head("object") is None
    assert list(store.list("")) == []
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]


def test_a_root_behind_a_link_is_fine(tmp_path: Path) -> None:
    """Operators mount and link as they like above the root."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = FileStore(tmp_path / "link")
    assert store.put_if_absent("a/b", b"x") is PutResult.CREATED
    assert (tmp_path / "real" / "a" / "b").exists()


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        (errno.ENOSPC, StoreTransientError, "free space"),
        (errno.EDQUOT, StoreTransientError, "quota"),
        (errno.EIO, StoreTransientError, "check the disk"),
        (errno.EROFS, StoreDeniedError, "writable"),
        (errno.EFBIG, StoreUnfitError, "can't hold it"),
    ],
)
def test_a_failing_disk_has_a_typed_error(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[TandemError], remedy: str
) -> None:
    """The key, the system's word and the remedy are in the message; nothing is left behind."""

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(kind, match=rf"'a/b' failed: {os.strerror(code)} \(.*{remedy}"):
            store.put_if_absent("a/b", b"x")
    assert list(store.list_uploads("")) == []
    assert store.put_if_absent("a/b", b"x") is PutResult.CREATED


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV])
def test_a_file_system_without_links_is_unfit(store: FileStore, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Put-if-absent can't be had there, so the probe refuses it too."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(StoreUnfitError, match=r"refuses hard links .*\(use a local file system"):
        store.probe("p")
    assert list(store.list_uploads("")) == []


@pytest.fixture
def nobody() -> Iterator[Callable[[], None]]:
    """A function that gives up root's rights until the test ends; permissions don't bind root."""
    user = os.geteuid()
    yield lambda: os.seteuid(65534) if user == 0 else None
    os.seteuid(user)


def test_a_folder_without_permission(tmp_path_factory: pytest.TempPathFactory, nobody: Callable[[], None]) -> None:
    """Every method says so and what to do, and none takes it for an empty store."""
    root = tmp_path_factory.mktemp("guarded")
    for parent in list(root.parents)[:2]:
        parent.chmod(0o755)
    store = FileStore(root)
    store.put_if_absent("a/b", b"x")
    (root / "a").chmod(0)
    root.chmod(0o555)
    nobody()
    try:
        for call in (
            lambda: store.put_if_absent("a/c", b"x"),
            lambda: store.put_if_absent("c", b"x"),
            lambda: store.get("a/b"),
            lambda: store.head("a/b"),
            lambda: list(store.list("")),
            lambda: list(store.list_folders("a/")),
            lambda: store.delete(["a/b"]),
            lambda: store.probe(""),
        ):
            with pytest.raises(StoreDeniedError, match=r"Permission denied \(give this user"):
                call()
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        root.chmod(0o755)
        (root / "a").chmod(0o755)


def test_a_root_out_of_reach(tmp_path_factory: pytest.TempPathFactory, nobody: Callable[[], None]) -> None:
    """What can't be looked at is not missing."""
    closed = tmp_path_factory.mktemp("closed")
    store = FileStore(closed / "root")
    (closed / "root").mkdir()
    closed.chmod(0)
    nobody()
    try:
        for call in (lambda: list(store.list("")), lambda: store.probe(""), lambda: store.put_if_absent("a", b"x")):
            with pytest.raises(StoreDeniedError, match=r"Permission denied \(give this user"):
                call()
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        closed.chmod(0o755)


def test_a_delete_that_fails_for_one_key_does_the_others(store: FileStore, tmp_path: Path) -> None:
    """All keys are tried; the first failure is told."""
    for key in ("a/1", "c/1"):
        store.put_if_absent(key, b"x")
    outside = tmp_path / "linked"
    outside.symlink_to(tmp_path)
    with pytest.raises(StoreDeniedError, match="linked/b"):
        store.delete(["a/1", "linked/b", "c/1"])
    assert list(store.list("")) == []


def test_processes_race_too(store: FileStore, tmp_path: Path) -> None:
    """The name is given by the file system, so it holds between processes."""
    script = (
        "import sys; from tandem.sink.store.file_store import FileStore; store = FileStore(sys.argv[1]); "
        "print(*[store.put_if_absent(f'r/{n}', sys.argv[2].encode()).value for n in range(40)])"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(lambda me: subprocess.check_output([*command, me], text=True).split(), "xyz"))
    for number in range(40):
        winners = [name for name, run in zip("xyz", runs, strict=True) if run[number] == "created"]
        assert winners == [store.get(f"r/{number}").decode()]


def test_a_vanished_root_is_not_an_empty_store(store: FileStore, tmp_path: Path) -> None:
    """A disk that was unmounted while the store was open: a put does not make the folder again."""
    store.put_if_absent("a", b"x")
    with pytest.raises(ObjectMissingError):
        store.get("b")
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    with pytest.raises(TandemError, match="does not exist"):
        store.put_if_absent("b", b"x")
    with pytest.raises(TandemError, match="does not exist"):
        store.head("a")
    assert not tmp_path.exists()


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_no_file_holds_nobody_up(store: FileStore, tmp_path: Path, kind: str) -> None:
    """A pipe has no end that a reader could come to: reads and puts name it at once, and listings leave it out."""
    store.put_if_absent("a/b", b"x")
    if kind == "pipe":
        os.mkfifo(tmp_path / "a" / "c")
    else:
        with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(tmp_path / "a"):
            server.bind("c")
    found: list[str] = []

    def ask() -> None:
        for request in (store.get, lambda key: store.put_if_absent(key, b"y")):
            try:
                request("a/c")
            except StoreUnfitError as error:
                found.append(str(error))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(10)
    assert not asking.is_alive(), "a request waits for the other end of the pipe"
    assert len(found) == 2
    assert all("'a/c' is no regular file" in text and "take it out of the store" in text for text in found)
    assert [info.key for info in store.list("")] == ["a/b"]
    assert store.head("a/c") is None


def test_a_proposed_command_is_quoted(tmp_path: Path) -> None:
    """It can be given to a shell as it stands."""
    with pytest.raises(StoreMissingError) as caught:
        list(FileStore(tmp_path / "a b; c").list(""))
    assert caught.value.remedy is not None
    assert caught.value.remedy.endswith(f"mkdir -p '{tmp_path}/a b; c'")


@pytest.mark.parametrize("first", ["put", "now"])
def test_hosts_that_share_a_folder_have_one_clock(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The file server stamps objects; this host is an hour behind it, and must not take a pin for one that lasts."""
    ahead = 3600
    fstat = os.fstat

    def of_server(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        return os.stat_result((*found[:8], int(found.st_mtime) + ahead, found[9]))

    monkeypatch.setattr(os, "fstat", of_server)
    if first == "put":
        store.put_if_absent("a", b"x")
    assert abs((store.now() - datetime.now(UTC)).total_seconds() - ahead) < 60
    assert [name for name in files(tmp_path / ".tandem-uploads") if not name.endswith("/")] == []
    assert any("differ by more than 5 minutes" in warning for warning in store.probe(""))


def test_a_folder_that_can_not_be_written_has_the_local_time(tmp_path: Path) -> None:
    """A command that only looks needs no right to write, nor a folder to be told that there is none."""
    assert abs((FileStore(tmp_path / "gone").now() - datetime.now(UTC)).total_seconds()) < 60
