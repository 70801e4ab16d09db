"""What is shown of hostile input: chains, small documents and messages that can be read, and whatever shows them.

A document may be read and yet hold a number that no time, table or page can show. So a store and a coordination topic
are twisted, and everything that people and scripts look at is drawn: status, check line, page, describe, history,
metrics, tail. What is damaged is named there; nothing else than an error of ours may end any of them.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import typer
from support.backups.build_backup import PAIR
from support.pipeline.doubles import MemoryStore

from fuzz import corpus, hostile
from fuzz.surface import Surface
from tandem.backup_avro.chain import json_codec, layout
from tandem.backup_avro.chain.entries import sha256_hex
from tandem.backup_avro.documents.coordination_message import (
    CoordinationEvent,
    CoordinationMessage,
    decode,
    encode,
    message_key,
)
from tandem.backup_avro.errors import TandemError
from tandem.controller.cli.inspect import coordination, describe, history, status
from tandem.controller.cli.output.output import OutputFormat, document
from tandem.controller.config import Config, loading
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.coordination.topic_reader import TopicRecordDocument, open_topic_record
from tandem.controller.decision.observation import Role
from tandem.controller.history.handover_progress import plan
from tandem.controller.history.store_history import read_past_events
from tandem.controller.history.turns import turn_of
from tandem.controller.http.page.content import content
from tandem.controller.http.page.render import page, report
from tandem.controller.metrics.instance_metrics import InstanceMetrics, collect_backup_metrics
from tandem.controller.metrics.page import MetricsPage
from tandem.controller.metrics.wiring import page_of
from tandem.controller.status import check as checks
from tandem.controller.status.outside_view import view_pair
from tandem.controller.status.overview import Overview, overview
from tandem.controller.status.pair_view import PairView
from tandem.sink.store.chain import outcomes
from tandem.sink.store.chain.chain_reader import ChainReader

_NUMBERS: Final = (
    *(0, 1, -1, 2, 7, 1 << 31, 1 << 48, 99_999_999, 100_000_000, (1 << 63) - 1, -(1 << 63)),
    *(corpus.AT, corpus.AT + 86_400_000, corpus.AT * 1000, 253_402_300_799_999, 253_402_300_800_000),
    *(-62_135_596_800_000, -62_135_596_800_001, 8_640_000_000_000_001),
)
_TEXTS: Final = (
    "",
    "a",
    "Active",
    "99999999999999999999",
    "-1",
    "٣",
    "\x1b[2J",
    "<script>",
    "\u202e",
    "a b c",
    "9" * 400,
)
_DETAILS: Final = (
    *("phase", "error", "base_remaining", "reason", "held", "transcoder", "trouble", "store", "failing"),
    *("head_sha256", "root", "topics", "objects_lost", "objects_lost_of", "keys_missing", "rolled_back"),
)
_SETTINGS: Final = ("delete.retention.ms", "delete.retention.ms", "retention.ms", "cleanup.policy", "max.message.bytes")
_VALUES: Final = (
    *("compact", "delete", "-1", "0", "1", "9" * 15, "9223372036854775807", "9" * 19, "9" * 400, "x", "1e9", ""),
)
_TIMES: Final = ("0001-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z")
_ACCEPTS: Final = (
    "application/openmetrics-text; version=1.0.0; escaping=underscores",
    "text/plain; version=0.0.4; q=0.5, */*;q=0.1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What lies in the bucket and on the topic, and what a client of `/metrics` says that it reads.

    A record is key, value, its time, and whether that is the brokers' own.
    """

    objects: dict[str, bytes]
    records: tuple[tuple[bytes, bytes, int | None, bool], ...]
    accept: str


# --- twisting ---------------------------------------------------------------------------------------------------------


def _twisted(rng: random.Random) -> Job:
    return Job(
        objects=_bucket(rng),
        records=tuple(_record(rng) for _ in range(rng.choice((0, 1, 2, 5)))),
        accept=hostile.text_of(rng, _ACCEPTS),
    )


def _bucket(rng: random.Random) -> dict[str, bytes]:
    store = corpus.store_of_backup(snapshot=rng.random() < 0.3)
    objects = store.objects
    if rng.random() < 0.7:
        _forge(rng, objects)
    small = {
        "pause": layout.pause_key(PAIR, 1),
        "release": layout.release_key(PAIR, 1),
        "pin": f"{layout.pins_prefix(PAIR)}{rng.choice(('reader-', 'checkpoint-'))}{'0' * 32}.json",
        "checkpoint request": layout.checkpoint_key(PAIR, "nightly"),
        "result": f"{layout.result_prefix(PAIR, 'verify')}{corpus.AT:020d}-{'0' * 16}.json",
    }
    for kind, key in small.items():
        if rng.random() < 0.4:
            objects[key] = json_codec.pack(_numbers(rng, json_codec.unpack(corpus.load()[kind][0], kind)))
    return objects


def _forge(rng: random.Random, objects: dict[str, bytes]) -> None:
    """Put a hostile number or text into one entry or claim, and mend the links after it: what a forger would do."""
    number = rng.choice((1, 2))
    seqs = sorted(key for key in objects if key.startswith(layout.chain_prefix(PAIR, number)))
    chain = [layout.claim_key(PAIR, number), *seqs]
    at = rng.randrange(len(chain))
    head = ""
    for index, key in enumerate(chain):
        plain = json_codec.unpack(objects[key], key) if index else objects[key]
        if index > at:
            plain = json_codec.canonical(json.loads(plain) | {"prev_sha256": head})
        if index == at:
            plain = _numbers(rng, plain)
        objects[key] = json_codec.pack(plain) if index else plain
        head = sha256_hex(plain)


def _numbers(rng: random.Random, plain: bytes) -> bytes:
    """Change a number, a time or a setting somewhere; most of the time it stays a document of its kind."""
    if rng.random() < 0.1:
        return hostile.document_of(rng, [plain])
    tree = json.loads(plain)
    for config in _configs(tree):
        config |= {rng.choice(_SETTINGS): rng.choice(_VALUES)}
    places = list(_places(tree))
    for _ in range(rng.choice((1, 1, 2))):
        holder, name = rng.choice(places)
        value = holder[name]
        if isinstance(value, int):
            holder[name] = rng.choice(_NUMBERS)
        elif isinstance(value, str) and name in {"at", "until", "deadline", "keep_until"}:
            holder[name] = rng.choice(
                ("0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z")
            )
        elif isinstance(value, str) and name in {"reason", "by", "incarnation", "owner", "cluster_id"}:
            holder[name] = rng.choice(_TEXTS)
    return json_codec.canonical(tree)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    names = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for name, value in list(names):
        if isinstance(value, dict | list):
            yield from _places(value)
        elif isinstance(value, int | str) and not isinstance(value, bool):
            yield tree, name


def _configs(tree: Any) -> Iterator[dict[str, str]]:
    for name, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if name == "config":
            yield value
        elif isinstance(value, dict | list):
            yield from _configs(value)


def _record(rng: random.Random) -> tuple[bytes, bytes, int | None, bool]:
    value = hostile.bytes_of(rng, corpus.load()["message"]) if rng.random() < 0.1 else encode(_message(rng))
    try:
        key = message_key(decode(value))
    except (TandemError, ValueError):
        key = b"shop/a/PROGRESS"
    return key, value, rng.choice((None, corpus.AT, *_NUMBERS)), rng.random() < 0.5


def _message(rng: random.Random) -> CoordinationMessage:
    def number() -> int | None:
        return rng.choice((None, 1, 2, *_NUMBERS))

    texts = (*_TEXTS, *map(str, _NUMBERS), "f" * 64)
    return CoordinationMessage(
        event=rng.choice(
            (CoordinationEvent.PROGRESS, CoordinationEvent.PROGRESS, CoordinationEvent.ACTIVATE, *CoordinationEvent)
        ),
        pair=PAIR,
        instance=rng.choice(("a", "a", "b", "cli", "x\x1b")),
        incarnation=rng.choice(("1", "2", *_TEXTS)),
        cluster_id="c",
        request_id=rng.choice(_TEXTS),
        at=rng.choice((corpus.AT, corpus.AT, *_NUMBERS)),
        target=rng.choice((None, "a", *_TEXTS)),
        generation=number(),
        state=rng.choice((None, *_TEXTS)),
        chain_seq=number(),
        lag_records=number(),
        reason=rng.choice((None, *_TEXTS)),
        details={rng.choice(_DETAILS): rng.choice(texts) for _ in range(rng.randrange(6))},
    )


# --- showing ----------------------------------------------------------------------------------------------------------


@cache
def _config() -> Config:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        path = Path(name) / "tandem.yaml"
        path.write_text(corpus.CONFIG, encoding="utf-8")
        return loading.load(path, {}, ("state.dir=none",), hostname=lambda: "tandem-0")


@cache
def _metrics() -> MetricsPage:
    return page_of(_config())


def _shown(job: Job) -> object:
    config = _config()
    store = MemoryStore(clock_ms=corpus.AT + 60_000, objects=dict(job.objects))
    topic_records = [
        open_topic_record(partition=0, offset=offset, at=at, key=key, value=value, appended_at=at if brokers else None)
        for offset, (key, value, at, brokers) in enumerate(job.records)
    ]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        for form in OutputFormat:
            for topic_record in topic_records:
                coordination._show(topic_record, form, all_pairs=True)
        seen = _sight(config, store, topic_records)
        ran = outcomes.latest_of_each(store, PAIR)
        found = overview(seen)
        for form in OutputFormat:
            status._show(found, ran, s3_only=False, form=form, wide=False)
            _describe(config, store, form)
        _history(store)
    _page(seen, found, ran)
    line = checks.line(checks.check_pair(found, ran, checks.CheckLimits(lag_warning=1, complete_age_warning_s=1.0)))
    if "\n" in line:
        raise AssertionError("the check is more than a line")
    json.dumps(document("Check", {"line": line}), allow_nan=False)
    picture = InstanceMetrics(role=Role.PASSIVE, backup=collect_backup_metrics(seen, "a"), handover_ms=0)
    _metrics().look = lambda: picture
    _metrics().render(job.accept)
    with contextlib.suppress(TandemError):
        plan(seen, to=None, force=True)
    return out.getvalue()


def _sight(config: Config, store: MemoryStore, topic_records: list[TopicRecordDocument]) -> PairView:
    reader = ChainReader(store, PAIR)
    seen = view_pair(config, store, s3_only=True, reader=reader)
    listener = PeerState(pair=PAIR, instances=config.instances)
    for topic_record in topic_records:
        if topic_record.message is not None and topic_record.message.pair == PAIR:
            listener.note_message(topic_record.message, appended_at=topic_record.appended_at)
    heads = listener.heads()
    return replace(
        seen,
        heard=listener.last_heard(),
        requests=listener.requests(),
        lost_heads=heads,
        published_under=listener.roots(heads),
    )


def _describe(config: Config, store: MemoryStore, form: OutputFormat) -> None:
    for number in (1, 2):
        with contextlib.suppress(TandemError, typer.Exit):
            describe._generation(config, store, number, form, wide=False)
    with contextlib.suppress(TandemError, typer.Exit):
        describe._topic(config, store, "orders", form, wide=False)


def _history(store: MemoryStore) -> None:
    with contextlib.suppress(TandemError):
        past_events = read_past_events(store, PAIR, only=None, routine=True)
        for table in history._tables(past_events.happenings, commits=True):
            str(table)
        json.dumps(document("History", {"events": past_events.happenings}), allow_nan=False)


def _page(seen: PairView, found: Overview, ran: Any) -> None:
    shown = content(found, me="a", turns=[turn_of(g) for g in seen.generations if g.seq], ran=ran)
    drawn = page(shown)
    for text in (drawn, report(shown)):
        if text.partition("</head>")[2].count("<script>") > (text is drawn):
            raise AssertionError("a script came in")


SURFACES: Final = (Surface(name="what is shown", twist=_twisted, read=_shown),)
