"""What reads input from outside: how a sound one is twisted, and what reads it."""

from __future__ import annotations

import io
import json
import random
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from support.backups.build_backup import PAIR
from support.pipeline.doubles import MemoryStore
from support.records.strategies import raw_batch

from fuzz import answers, corpus, given, hostile, sealed, shown
from fuzz.surface import WHERE, Surface
from tandem.backup_avro.chain import document_limits, json_codec, layout
from tandem.backup_avro.chain.entries import sha256_hex
from tandem.backup_avro.documents import checkpoint, coordination_message, outcome, pause, range_offer, release
from tandem.backup_avro.record.compression import deflate, gzip, zstd
from tandem.backup_avro.record.container import Codec, decode_header, decompress, encode_header, iter_blocks
from tandem.backup_avro.record.varint import encode_long
from tandem.backup_avro.record.version_1 import decoder_for
from tandem.backup_avro.selection.moments import parse_moment
from tandem.controller.cli.restore import options
from tandem.controller.config import loading
from tandem.controller.config.values import parse_duration, parse_size
from tandem.controller.http import health as http
from tandem.controller.status import wait_conditions
from tandem.sink.kafka.auth import token_endpoint
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.transcode.compiled import CompiledTranscoder
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.restore.groups import group_plan
from tandem.spark_jobs.restore.plan import plan_file
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.progress import offset_map, restore_record
from tandem.spark_jobs.restore.progress import task_progress as progress
from tandem.spark_jobs.state.read_options import parse_options

_LIMIT: Final = 64 << 20


def _documents(kind: str, read: Callable[[bytes], object]) -> Surface:
    def twist(rng: random.Random) -> bytes:
        if rng.random() < 0.3:
            return hostile.bytes_of(rng, corpus.load()[kind])
        return hostile.document_of(rng, corpus.documents(kind))

    return Surface(name=kind, twist=twist, read=read)


_MARK: Final = "a state"


def _stored(kind: str, read: Callable[[bytes, str], object]) -> Surface:
    return _documents(kind, lambda data: read(data, WHERE))


def _summed(kind: str, read: Callable[[bytes], object]) -> Surface:
    """Documents that begin with their sum: of twisted ones the right sum, or what is behind it is not reached."""

    def twist(rng: random.Random) -> bytes:
        sound = corpus.load()[kind]
        if rng.random() < 0.3:
            return hostile.bytes_of(rng, sound)
        return json_codec.pack(hostile.document_of(rng, [json_codec.unpack(data, kind) for data in sound]))

    return Surface(name=kind, twist=twist, read=read)


def _entry(data: bytes) -> object:
    return json_codec.decode_entry(data, WHERE)


def _twisted_entry(rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return hostile.bytes_of(rng, corpus.load()["entry"])
    data = hostile.document_of(rng, corpus.load()["entry document"])
    # With a right sum, or what is behind it would never be reached.
    return gzip(data) if rng.random() < 0.3 else json_codec.pack(data)


def _linked(rng: random.Random) -> dict[str, bytes]:
    """Twist one entry of a chain, and mend the links of all that follow: what a forger would do."""
    store = corpus.store_of_backup()
    number = rng.choice((1, 2))
    seq = 0
    while layout.entry_key(PAIR, number, seq + 1) in store.objects:
        seq += 1
    at = rng.randint(1, seq)
    head = ""
    for index in range(at, seq + 1):
        key = layout.entry_key(PAIR, number, index)
        document = json.loads(json_codec.unpack(store.objects[key], key))
        if head:
            document["prev_sha256"] = head
        plain = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        if index == at:
            plain = hostile.document_of(rng, [plain])
        head = sha256_hex(plain)
        store.objects[key] = json_codec.pack(plain)
    return store.objects


def _folded(rng: random.Random) -> dict[str, bytes]:
    """Twist the state in a SNAPSHOT, all that its readers know of a chain."""
    store = corpus.store_of_backup(snapshot=True)
    key = max(key for key in store.objects if key.startswith(layout.chain_prefix(PAIR, 2)))
    document = json.loads(json_codec.unpack(store.objects[key], key))
    folded = hostile.document_of(rng, [json_codec.canonical(document["folded"])])
    around = json_codec.canonical(document | {"folded": _MARK}).split(f'"{_MARK}"'.encode())
    store.objects[key] = json_codec.pack(folded.join(around))
    return store.objects


def _plan(objects: dict[str, bytes]) -> object:
    """Read the chains and plan a restore."""
    store = MemoryStore(clock_ms=corpus.AT * 2, objects=dict(objects))
    return plan_of(ChainReader(store, PAIR), RestoreOptions())


def _pins(objects: bytes) -> object:
    store = MemoryStore(objects={f"{layout.pins_prefix(PAIR)}{'0' * 32}.json": objects})
    return pins.list_pins(store, PAIR)


def _file(data: bytes) -> object:
    """Read all of a container file, whichever version it is."""
    header = decode_header(data)
    decode = decoder_for(header.schema_json)
    return [
        sum(1 for _ in decode(decompress(block, header.codec, _LIMIT), block.count))
        for block in iter_blocks(data, header, header.length, len(data))
    ]


@cache
def _squeezed(codec: Codec, size: int) -> bytes:
    zeros = bytes(size)
    match codec:
        case Codec.NULL:
            return zeros[:5]
        case Codec.DEFLATE:
            return deflate(zeros)
        case Codec.ZSTANDARD:
            return zstd(zeros)
        case Codec.SNAPPY:  # a length of 2^32 - 1, and copies of one byte
            return b"\xff\xff\xff\xff\x0f" + b"\xfe\x01\x00" * (size // 64) + bytes(4)


def _bomb(rng: random.Random) -> bytes:
    """A file whose one block claims, or really would take, far more than it has."""
    codec = rng.choice(list(Codec))
    sync = bytes(16)
    body = _squeezed(codec, rng.choice((1 << 16, _LIMIT + 1, 2 * _LIMIT)))
    count = rng.choice((1, 1 << 30, (1 << 63) - 1, -1))
    claimed = rng.choice((len(body), len(body), 1 << 40, -1))
    return encode_header(codec=codec, sync=sync) + encode_long(count) + encode_long(claimed) + body + sync


@cache
def _lists(count: int) -> bytes:
    return b'{"v":1,"objects":[' + b"[]," * count + b"[]]}"


def _document_bomb(rng: random.Random) -> tuple[str, bytes]:
    """A document of lists of nothing, or of more bytes than it can have, as each kind of it is stored."""
    key = rng.choice((layout.entry_key(PAIR, 1, 1), layout.pause_key(PAIR, 1), layout.checkpoint_key(PAIR, "x")))
    if rng.random() < 0.3:
        return key, bytes((document_limits.most_bytes(layout.pause_key(PAIR, 1)) or 0) + rng.choice((0, 1)))
    plain = _lists(rng.choice((1 << 10, 1 << 16, document_limits.VALUES // 2)))
    return key, rng.choice((gzip, bytes))(plain)


def _bombed(job: tuple[str, bytes]) -> object:
    key, data = job
    most = document_limits.most_bytes(key)
    data = MemoryStore(objects={key: data}).get(key, most=most)
    if "generations" in key:
        return json_codec.decode_entry(data, key)
    return pause.decode_pause(data, key) if "pauses" in key else checkpoint.decode_request(data, key)


def _batches(data: bytes) -> object:
    transcoder = CompiledTranscoder(batch_limit=1 << 20)
    return transcoder.transcode(data, topic="t", partition=0, start=0, until=None, aborted=(), read_committed=True)


def _compressed_batch(rng: random.Random) -> bytes:
    """A batch with a right CRC around compressed records that are twisted, or many times there."""
    codec, sound = rng.choice(list(corpus.payloads().items()))
    payload = hostile.bytes_of(rng, sound)
    if rng.random() < 0.2:
        payload += hostile.bytes_of(rng, sound)[-rng.choice((1, 5, 23, 1000)) :] * rng.choice((1, 2, 1000))
    return raw_batch(payload, base_offset=0, last_delta=2, count=3, attributes=codec, base_timestamp=corpus.AT)


def _twisted_body(rng: random.Random) -> tuple[bytes, int]:
    body, count = rng.choice(corpus.bodies())
    return hostile.bytes_of(rng, [body]), count


def _body(job: tuple[bytes, int]) -> object:
    body, count = job
    return best_bodies().advance(bytes(32), body, count)


def _message(job: tuple[bytes, bytes]) -> object:
    key, value = job
    return coordination_message.decode(value), coordination_message.parse_message_key(key)


def _twisted_message(rng: random.Random) -> tuple[bytes, bytes]:
    keys, values = [b"shop/a/PROGRESS", b"shop/b/ACTIVATE"], corpus.load()["message"]
    if rng.random() < 0.5:
        return rng.choice(keys), hostile.bytes_of(rng, values)
    return hostile.bytes_of(rng, keys), rng.choice(values)


def _twisted_answer(rng: random.Random) -> tuple[int, bytes]:
    sound = corpus.load()["token answer"]
    text = hostile.bytes_of(rng, sound) if rng.random() < 0.3 else hostile.document_of(rng, sound)
    return rng.choice((200, 200, 200, 400, 401, 503)), text


def _answer(job: tuple[int, bytes]) -> object:
    token = token_endpoint.token_of(*job, WHERE)
    if not 0 < token.lifetime_s < _A_DECADE_S:
        raise AssertionError(f"a token that lives {token.lifetime_s} s")
    return token


_A_DECADE_S: Final = 10 * 366 * 86_400


@contextmanager
def _config() -> Iterator[Surface]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        path = Path(name) / "tandem.yaml"

        def read(job: tuple[bytes, Mapping[str, str], tuple[str, ...]]) -> object:
            path.write_bytes(job[0])
            return loading.load(path, job[1], job[2], hostname=lambda: "tandem-0")

        yield Surface(name="configuration", twist=_twisted_config, read=read)


def _twisted_config(rng: random.Random) -> tuple[bytes, dict[str, str], tuple[str, ...]]:
    text = hostile.text_of(rng, [corpus.CONFIG]) if rng.random() < 0.8 else corpus.CONFIG
    data = text.encode(errors="surrogatepass")
    if rng.random() < 0.2:
        data = hostile.bytes_of(rng, [corpus.CONFIG.encode()])
    names = ["TANDEM_PAIR", "TANDEM_STORE__ROOT", "TANDEM_KAFKA__SASL_PASSWORD", "TANDEM_ROTATION__INTERVAL"]
    environment = {hostile.text_of(rng, names): hostile.text_of(rng, ["30s", "s3://b/p"])} if rng.random() < 0.3 else {}
    flags = (hostile.text_of(rng, ["rotation.interval=3d", "kafka.acks=all"]),) if rng.random() < 0.3 else ()
    return data, environment, flags


_TEXTS: Final[Mapping[str, tuple[Callable[[str], object], tuple[str, ...]]]] = {
    "moment": (lambda text: parse_moment("--at", text), ("2026-05-04T10:00:00Z", "2026-05-04T10:00:00.123+02:00")),
    "duration": (parse_duration, ("500ms", "1.5h", "7d", "90")),
    "size": (parse_size, ("64MiB", "1.5GB", "1000")),
    "goal": (lambda text: wait_conditions.parse(text, ("a", "b")), ("complete", "generation=7", "role=a:active")),
    "bound": (options.bound, ("orders:0=17", "orders-eu:12=0")),
}


def _text(job: tuple[str, str]) -> object:
    return _TEXTS[job[0]][0](job[1])


def _twisted_text(rng: random.Random) -> tuple[str, str]:
    name = rng.choice(list(_TEXTS))
    return name, hostile.text_of(rng, _TEXTS[name][1])


_SOURCE: Final = {
    "root": "file:///tmp/backups",
    "pair": "shop",
    "topics": "orders,users",
    "generation": "3",
    "at": "2026-05-04T10:00:00Z",
    "latestPerKey": "true",
}


def _twisted_options(rng: random.Random) -> dict[str, str]:
    name = rng.choice(list(_SOURCE))
    return {
        (hostile.text_of(rng, [key]) if rng.random() < 0.1 else key): hostile.text_of(rng, [value])
        if key == name
        else value
        for key, value in _SOURCE.items()
        if rng.random() < 0.9
    }


_REQUESTS: Final = (
    b"GET /status HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    b"HEAD /metrics HTTP/1.0\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n",
    b"GET /history?x=1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    b"POST /status HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n",
)


@contextmanager
def _http() -> Iterator[Surface]:
    health = http.starting("shop", "a", "i")
    pages = {"/": lambda: http.HttpAnswer(body="page")}
    server = http.serve(("127.0.0.1", 0), lambda: health, pages, lambda _: (b"metrics", "text/plain"))

    def ask(request: bytes) -> bytes:
        with socket.create_connection(server.server_address[:2], timeout=30) as connection:
            try:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                answer = io.BytesIO()
                while piece := connection.recv(65536):
                    answer.write(piece)
            except OSError:  # it hung up while there was more to come
                return b""
        return answer.getvalue()

    def read(request: bytes) -> object:
        answer = ask(request)
        if answer and not answer.startswith(b"HTTP/1."):
            raise AssertionError(f"answered {answer[:80]!r}")
        if answer.startswith(b"HTTP/1.0 500"):
            raise AssertionError("a fault of ours")
        if not ask(b"GET /livez HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200"):
            raise AssertionError("it does not answer any more")
        if threading.active_count() > _MOST_THREADS:
            raise AssertionError(f"{threading.active_count()} threads")
        return answer

    try:
        yield Surface(name="http", twist=lambda rng: hostile.bytes_of(rng, _REQUESTS), read=read)
    finally:
        server.shutdown()
        server.server_close()


_MOST_THREADS: Final = 50


def _plain(name: str, kind: str, read: Callable[[bytes], object]) -> Surface:
    return Surface(name=name, twist=lambda rng: hostile.bytes_of(rng, corpus.load()[kind]), read=read)


_SIMPLE: Final = (
    Surface(name="chain entry", twist=_twisted_entry, read=_entry),
    Surface(name="chain, links mended", twist=_linked, read=_plan),
    Surface(name="state in a SNAPSHOT", twist=_folded, read=_plan),
    _stored("claim", json_codec.decode_claim),
    _summed("checkpoint request", lambda data: checkpoint.decode_request(data, WHERE)),
    _summed("checkpoint outcome", lambda data: checkpoint.decode_outcome(data, WHERE)),
    _summed("pause", lambda data: pause.decode_pause(data, WHERE)),
    _summed("release", lambda data: release.decode_release(data, WHERE)),
    _summed("offer", lambda data: range_offer.decode_offer(data, WHERE)),
    _summed("result", lambda data: outcome.decode_outcome(data, WHERE)),
    _summed("pin", _pins),
    _documents("restore plan", lambda data: plan_file.decode(data, WHERE, pair=PAIR)),
    _summed("restore record", lambda data: restore_record.decode(data, WHERE)),
    _summed("offset page", lambda data: offset_map.decode_page(data, WHERE)),
    _summed("groups", lambda data: group_plan.decode_snapshot(data, WHERE, {"orders"})),
    _stored("plan state", progress.decode_state),
    _stored("progress", progress.decode_progress),
    _plain("avro file", "avro file", _file),
    Surface(name="avro bomb", twist=_bomb, read=_file),
    Surface(name="document bomb", twist=_document_bomb, read=_bombed),
    _plain("record batches", "batches", _batches),
    Surface(name="compressed records", twist=_compressed_batch, read=_batches),
    Surface(name="block body", twist=_twisted_body, read=_body),
    Surface(name="coordination message", twist=_twisted_message, read=_message),
    Surface(name="token answer", twist=_twisted_answer, read=_answer),
    Surface(name="command line", twist=_twisted_text, read=_text, refusals=(ValueError,)),
    Surface(name="data source options", twist=_twisted_options, read=parse_options),
    *sealed.SURFACES,
    *given.SURFACES,
    *shown.SURFACES,
)
_BY_NAME: Final = {surface.name: surface for surface in _SIMPLE}
_OPENED: Final[Mapping[str, Callable[[], Any]]] = {
    "configuration": _config,
    "http": _http,
    **given.OPENED,
    **answers.OPENED,
}
NAMES: Final = (*_BY_NAME, *_OPENED)


@contextmanager
def opened(name: str) -> Iterator[Surface]:
    """Lend the surface of that name."""
    if name in _OPENED:
        with _OPENED[name]() as surface:
            yield surface
    else:
        yield _BY_NAME[name]
