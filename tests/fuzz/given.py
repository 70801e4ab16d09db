"""Readers of what people bring along: a connector's files and their index, files of another cluster, heads."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from support.backups.build_backup import PAIR
from support.backups.old_files import GOLDEN_FOLDER, sink_key
from support.pipeline.doubles import MemoryStore

from fuzz import corpus, hostile
from fuzz.surface import Surface
from tandem.backup_avro.chain.entries import sha256_hex
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.documents.connector_layout import ConnectorReading, OverlapPreference, place_of
from tandem.backup_avro.errors import TandemError
from tandem.backup_avro.record.record_spans import Span
from tandem.backup_avro.selection.restorable_state import PartitionSelection
from tandem.controller.cli.options.backup_place import expected
from tandem.controller.cli.options.target_cluster import target_properties
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.connector import file_findings
from tandem.spark_jobs.connector.choose_files import files_to_read
from tandem.spark_jobs.connector.connector_reader import ConnectorReader
from tandem.spark_jobs.reading.object_reader import ObjectReader, StoreAddress
from tandem.spark_jobs.reading.wanted_state import StateRequest
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.verify.verify_objects import missing_heads

# --- a connector's files ----------------------------------------------------------------------------------------------


@cache
def _files() -> Mapping[str, bytes]:
    """Files of both of the connector's layouts, by their keys."""
    return {path.relative_to(GOLDEN_FOLDER).as_posix(): path.read_bytes() for path in GOLDEN_FOLDER.rglob("*.avro")}


def _twisted_file(rng: random.Random) -> tuple[str, bytes, bool]:
    sound = list(_files().values())
    data = hostile.bytes_of(rng, sound) if rng.random() < 0.9 else rng.choice(corpus.load()["avro file"])
    return rng.choice(list(_files())), data, rng.random() < 0.5


def _looked(job: tuple[str, bytes, bool]) -> object:
    """Look at one file: whatever is wrong is told, nothing is raised."""
    key, data, empty_as_null = job
    place = place_of(key)
    assert place is not None
    listed = file_findings.ListedFile(key=key, size=len(data), modified=corpus.AT, place=place)
    try:
        found = file_findings.examine_file(listed, data, empty_as_null=empty_as_null)
    except TandemError as error:
        raise AssertionError(f"raised instead of told: {error!r}") from error
    if not found.findings and found.sha256 != sha256_hex(data):
        raise AssertionError("nothing is wrong with bytes that were not looked at")
    for finding in found.findings:
        if not finding.message or len(finding.message) > _LONGEST:
            raise AssertionError(f"says nothing, or too much: {finding.message!r:.200}")
    return found


_LONGEST: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Address:
    """Stands for a `StoreAddress`, with objects in memory."""

    root: str = "memory:///"
    connector: ConnectorReading
    store: MemoryStore = field(repr=False)

    def open(self) -> ObjectStore:
        return self.store

    def reader(self, *, cache_bytes: int) -> ObjectReader:
        """Return what fetches and checks files there."""
        return ObjectReader(self.store, cache_bytes=cache_bytes, connector=self.connector)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Root:
    """What lies below a root, how it is to be read, and what an index says of it."""

    files: Mapping[str, bytes]
    reading: ConnectorReading
    index: bytes = b""


def _twisted_root(rng: random.Random) -> _Root:
    """Call a file otherwise, hurt one, have one twice; or all of it."""
    files = dict(_files())
    for _ in range(rng.choice((1, 1, 2, 5))):
        key = rng.choice(list(files))
        match rng.randrange(4):
            case 0:
                files[hostile.text_of(rng, list(_files()))] = files[key]
            case 1:
                files[hostile.text_of(rng, [key])] = files.pop(key)
            case 2:
                files[key] = hostile.bytes_of(rng, list(_files().values()))
            case _:
                files[sink_key("orders", rng.choice((0, 1, 99_999, 2**31 - 1, 2**31)), rng.randrange(9))] = files[key]
    return _Root(files=files, reading=_reading(rng, files))


def _reading(rng: random.Random, files: Mapping[str, bytes]) -> ConnectorReading:
    return ConnectorReading(
        empty_as_null=rng.random() < 0.3,
        instances=rng.choice(((), (), (("customers", "a"),), (("customers", "b"),))),
        prefer=rng.choice((None, OverlapPreference.NEWER, OverlapPreference.OLDER)),
        left_out=frozenset(rng.sample(sorted(files), rng.choice((0, 0, 0, 1)))),
    )


def _restored(root: _Root, index: Path | None = None) -> object:
    """List, read and choose as a restore does, make its plan, and read all that it names."""
    store = MemoryStore(clock_ms=corpus.AT, step_ms=0, objects=dict(root.files))
    address = cast("StoreAddress", _Address(connector=root.reading, store=store))
    reader = ConnectorReader(address, index=index)
    reader.run = map  # one after the other
    found = reader.find(StateRequest())
    assert found.ready is not None
    plan = plan_of(reader, RestoreOptions())
    wanted = files_to_read(reader.listing(), root.reading, lambda _: True)
    for file in reader.files(wanted) if index is None else ():
        if file.findings:
            raise AssertionError(f"gone by in spite of {file.findings}")
    objects = address.reader(cache_bytes=0)
    records = 0
    for selected in found.ready.selection.partitions:
        last = -1
        for span in _spans(objects, selected):
            if span[2] <= last:
                raise AssertionError(f"offset {span[2]} follows {last} in {selected.key}")
            last = span[2]
            records += 1
    if index is None and records != plan.records:  # an index that lies is found when records are read, or costs nothing
        raise AssertionError(f"{records} records were read, the plan says {plan.records}")
    return records


def _spans(objects: ObjectReader, selected: PartitionSelection) -> Iterator[Span]:
    for piece in selected.slices:
        for body in objects.bodies(piece):
            yield from body.spans()


@cache
def _index() -> tuple[bytes, ...]:
    """Return the lines of a sound index of `_files`."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        path = Path(name) / "index"
        _restored(_Root(files=_files(), reading=_OF_INDEX), path)
        return tuple(path.read_bytes().splitlines(keepends=True))


_OF_INDEX: Final = ConnectorReading(instances=(("customers", "a"),))


def _twisted_index(rng: random.Random) -> _Root:
    """Twist a line or two; rarely all of its bytes."""
    if rng.random() < 0.2:
        return _Root(files=_files(), reading=_OF_INDEX, index=hostile.bytes_of(rng, [b"".join(_index())]))
    lines = list(_index())
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(lines)) if rng.random() < 0.2 else rng.randrange(1, len(lines))
        lines[at] = _instead(rng, _index()[at])
    return _Root(files=_files(), reading=_OF_INDEX, index=b"".join(lines))


def _instead(rng: random.Random, line: bytes) -> bytes:
    """Return another line; mostly one that still is of that file, as only such a line is gone by."""
    columns = json.loads(line)
    if not isinstance(columns, list) or rng.random() < 0.3:
        return hostile.document_of(rng, [line]) + b"\n"
    rest = hostile.document_of(rng, [json.dumps(columns[3:]).encode()])
    return json.dumps(columns[:3]).encode().removesuffix(b"]") + b", " + rest.removeprefix(b"[") + b"\n"


@contextmanager
def _of_index() -> Iterator[Surface]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        path = Path(name) / "index"

        def read(job: _Root) -> object:
            path.write_bytes(job.index)
            return _restored(job, path)

        yield Surface(name="index of files", twist=_twisted_index, read=read)


# --- another cluster, heads -------------------------------------------------------------------------------------------

_TARGET: Final = """\
bootstrap.servers: broker-1:9092,broker-2:9092
security.protocol: SASL_SSL
sasl.mechanism: SCRAM-SHA-512
sasl.username: tandem
sasl.password: "01234567"
ssl.ca.location: /etc/ca.pem
sasl.oauthbearer.client.secret.file: SECRET
socket.keepalive.enable: true
message.max.bytes: 1000000
"""


@contextmanager
def _target() -> Iterator[Surface]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        path, secret = Path(name) / "target.yaml", Path(name) / "secret"
        secret.write_text("a secret\n")
        text = _TARGET.replace("SECRET", str(secret))
        nested = "kafka:\n" + "".join(f"  {line}\n" for line in text.splitlines())

        def twist(rng: random.Random) -> tuple[bytes, str | None]:
            servers = hostile.text_of(rng, ["h:9092"]) if rng.random() < 0.1 else None
            if rng.random() < 0.2:
                return hostile.bytes_of(rng, [text.encode(), nested.encode()]), servers
            if rng.random() < 0.1:
                return _folded_out(rng).encode(), servers
            return hostile.text_of(rng, [text, nested]).encode(errors="surrogatepass"), servers

        def read(job: tuple[bytes, str | None]) -> object:
            path.write_bytes(job[0])
            found = target_properties(None, job[1], path)
            longest = max(len(str(value)) for value in found.values())
            if longest > len(job[0]) + len(job[1] or "") + 1000:
                raise AssertionError(f"{longest} characters were made of {len(job[0])} bytes")
            return found

        yield Surface(name="target's configuration", twist=twist, read=read)


def _folded_out(rng: random.Random) -> str:
    """Return YAML in which aliases stand for lists of aliases: a few lines more, and they would be gigabytes."""
    kind = rng.choice(("[{}]", "{{a: [{}]}}"))
    lines = ["l0: &l0 " + kind.format("x")]
    lines += [f"l{n}: &l{n} " + kind.format(", ".join([f"*l{n - 1}"] * 10)) for n in range(1, rng.choice((3, 6)))]
    last = f"bootstrap.servers: *l{len(lines) - 1}"
    return "\n".join([*lines, last, ""])


@cache
def _heads() -> tuple[MemoryStore, tuple[str, ...]]:
    """A store, and the heads of its two generations."""
    store = corpus.store_of_backup()
    reader = ChainReader(store, PAIR)
    reader.refresh()
    return store, tuple(str(Head.of(state)) for state in reader.history())


def _head(text: str) -> object:
    """Read what --expect-head says, and look for it in the chains."""
    store, _ = _heads()
    reader = ChainReader(store, PAIR)
    reader.refresh()
    return missing_heads(reader, expected([text]))


SURFACES: Final = (
    Surface(name="file of a connector", twist=_twisted_file, read=_looked),
    Surface(name="root of a connector", twist=_twisted_root, read=_restored),
    Surface(name="expected head", twist=lambda rng: hostile.text_of(rng, _heads()[1]), read=_head),
)
OPENED: Final[Mapping[str, Callable[[], AbstractContextManager[Any]]]] = {
    "index of files": _of_index,
    "target's configuration": _target,
}
