"""Numbers out of range: refused where a document or a message is read, so that whatever shows it can."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from support.backups.build_backup import PAIR, Backup, records
from support.pairs.messages import message as message_of
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import json_codec, layout
from tandem.backup_avro.chain.entries import EntryKind, number_setting
from tandem.backup_avro.chain.integers import FIRST_MOMENT, LAST_MOMENT, is_moment, utc_time
from tandem.backup_avro.documents.coordination_message import (
    ReaderPosition,
    decode,
    encode,
)
from tandem.backup_avro.errors import DamagedError
from tandem.controller.coordination.topic_reader import open_topic_record
from tandem.controller.metrics.page import MetricDetail, MetricsPage
from tandem.sink.kafka.cluster.guarded_topics import tombstone_guarantee_s
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader

MESSAGE = message_of(
    instance="a",
    incarnation="i",
    generation=99_999_999,
    chain_seq=0,
    lag_records=0,
    positions=(ReaderPosition(topic="t", partition=0, offset=0),),
)


def test_what_instances_send_is_read() -> None:
    """From the first to the last of each range; what a message need not say, it need not."""
    for message in (
        MESSAGE,
        replace(MESSAGE, at=LAST_MOMENT, chain_seq=2**63 - 1, generation=0),
        replace(MESSAGE, generation=None, chain_seq=None, lag_records=None, positions=()),
    ):
        assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "change",
    [
        {"at": -1},
        {"at": LAST_MOMENT + 1},
        {"at": 2**63 - 1},
        {"generation": -1},
        {"generation": 100_000_000},
        {"chain_seq": -1},
        {"lag_records": -(2**63)},
        {"positions": (ReaderPosition(topic="t", partition=-1, offset=0),)},
        {"positions": (ReaderPosition(topic="t", partition=1 << 31, offset=0),)},
        {"positions": (ReaderPosition(topic="t", partition=0, offset=-1),)},
    ],
    ids=str,
)
def test_a_message_with_a_number_out_of_range_is_none(change: dict[str, object]) -> None:
    """One of them once ended `status`, `check`, the page and `coordination tail`, until it was compacted away."""
    data = encode(replace(MESSAGE, **change))  # type: ignore[arg-type]  # fields by name
    with pytest.raises(DamagedError, match="a coordination message is damaged"):
        decode(data)
    topic_record = open_topic_record(partition=0, offset=7, at=2**62, key=b"shop/a/PROGRESS", value=data)
    assert topic_record.message is None
    assert topic_record.undecodable is not None
    assert topic_record.at is None, "a producer writes any time"


def test_the_last_times_there_are() -> None:
    """A time that is read may have an interval added to it, and is shown all the same."""
    assert [is_moment(at) for at in (FIRST_MOMENT - 1, FIRST_MOMENT, LAST_MOMENT, LAST_MOMENT + 1)] == [
        False,
        True,
        True,
        False,
    ]
    latest = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    assert utc_time(LAST_MOMENT) == utc_time(LAST_MOMENT + 10**15) == latest
    assert utc_time(FIRST_MOMENT) == utc_time(-(2**63)) == datetime(1, 1, 1, tzinfo=UTC)
    assert utc_time(1_700_000_000_123) == datetime.fromtimestamp(1_700_000_000.123, UTC)


def test_fields_have_ranges() -> None:
    """Times that can't be shown and negative counts are damage; what is absent is its default."""
    fields = json_codec.Fields({"at": 2**62, "n": -1, "ok": 0, "time": LAST_MOMENT, "none": None}, "here")
    assert (fields.moment("time"), fields.count("ok")) == (LAST_MOMENT, 0)
    assert (fields.moment("absent", None), fields.count("absent", None), fields.moment("none", None)) == (None,) * 3
    with pytest.raises(DamagedError, match=f"here: field at is no time: {2**62}"):
        fields.moment("at")
    with pytest.raises(DamagedError, match="here: field n is negative: -1"):
        fields.count("n")


_PLACES = (("head_at", False), ("seq", False), ("records", False), ("bytes", False))
_OF_A_STATE = (("head_at", True), ("moments", True), ("completed", True), ("records", True), ("bytes", True))


@pytest.mark.parametrize(("name", "snapshot"), _PLACES + _OF_A_STATE)
def test_a_chain_with_a_number_out_of_range_is_damaged(name: str, snapshot: bool) -> None:
    """Whoever can write to the bucket can mend all links after it."""
    store = MemoryStore(clock_ms=1_700_000_000_000)
    backup = Backup.completed(store, records("t", 0, range(5)))
    backup.commit(records("t", 0, range(5, 9)))
    if snapshot:
        backup.append(EntryKind.SNAPSHOT)
    key = layout.entry_key(PAIR, 1, backup.writer.state.seq)
    document = json.loads(json_codec.unpack(store.objects[key], key))
    hurt = document["folded"] if snapshot else document
    match name:
        case "head_at":
            hurt["head_at"] = LAST_MOMENT + 1
        case "moments":
            hurt["moments"][-1][1] = LAST_MOMENT + 1
        case "completed":
            hurt["completed"][1] = LAST_MOMENT + 1
        case "seq":
            document["seq"] = -1
        case "records":
            hurt["objects"][0]["parts"][0]["records"] = -1
        case _:
            hurt["objects"][0]["bytes"] = -1
    store.objects[key] = json_codec.pack(json_codec.canonical(document))
    reader = ChainReader(store, PAIR)
    assert reader.refresh(tolerant=True) == []
    assert list(reader.damaged) == [1]


def test_a_pin_with_an_end_that_is_no_time_can_not_be_read() -> None:
    """It is named, and ends as a reader's pin does."""
    store = MemoryStore()
    key = f"{layout.pins_prefix(PAIR)}x.json"
    store.objects[key] = json_codec.pack(
        json_codec.canonical({"v": 1, "id": "x", "generation": 1, "owner": "me", "until": 2**62})
    )
    (pin,) = pins.list_pins(store, PAIR)
    assert (pin.generation, pin.trouble) == (None, "it can't be read")


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=abc",
        "application/openmetrics-text; version=1..0",
        "text/plain; version=x",
        "application/openmetrics-text; version=9.9; escaping=?",
        ";;;,,,===",
        "",
    ],
)
def test_metrics_are_sent_whatever_a_client_says_that_it_reads(accept: str) -> None:
    """A version that is none was once a traceback of 8 KB for each request."""
    page = MetricsPage(
        pair="p", instance="a", transcoder=lambda: "compiled", detail=MetricDetail(), now=lambda: 1_700_000_000.0
    )
    data, kind = page.render(accept)
    assert b"tandem_ready" in data
    assert kind.startswith(("text/plain", "application/openmetrics-text"))


@pytest.mark.parametrize(
    ("text", "number", "guaranteed_s"),
    [
        (None, 7, 86_400),
        ("0", 0, 0),
        ("-1", -1, 0),
        (str(2**63 - 1), 2**63 - 1, (2**63 - 1) / 1000),
        *((text, 8, 0) for text in ("", "x", "--1", "9" * 400, "1e9")),
    ],
)
def test_a_setting_that_is_no_number_is_told_from_one_that_is_not_there(
    text: str | None, number: int, guaranteed_s: float
) -> None:
    """A forged chain once ended `status` with it. A topic with such a time for tombstones promises none."""
    config = {"cleanup.policy": "compact"} | ({} if text is None else {"delete.retention.ms": text})
    assert number_setting(config, "delete.retention.ms", unsaid=7, unclear=8) == number
    assert tombstone_guarantee_s(config) == guaranteed_s
