"""What verifications and drills came to: written, read strictly, the oldest forgotten."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from doubles import MemoryStore

from backup_avro import layout
from backup_avro.chain_json import unpack
from backup_avro.errors import DamagedError
from backup_avro.outcome import Outcome, OutcomeKind, decode_outcome, encode_outcome
from sink.chain import outcomes

DRILL = Outcome(
    kind=OutcomeKind.DRILL,
    pair="shop",
    at=1_700_000_000_123,
    by="me@here",
    clean=True,
    what="3 topics",
    findings=0,
    records=7,
    bytes=99,
    generations={7: 42},
    phases={"load": 1.5, "check": 0.25},
)


@pytest.mark.parametrize("outcome", [DRILL, replace(DRILL, clean=False, error="no broker", generations={}, phases={})])
def test_what_is_written_is_read(outcome: Outcome) -> None:
    """Every field, canonical, and only in this form."""
    data = encode_outcome(outcome)
    assert decode_outcome(data, "x") == outcome
    assert encode_outcome(decode_outcome(data, "x")) == data
    assert outcome.seconds == sum(outcome.phases.values())


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"at": "yesterday"},
        {"clean": 1},
        {"generations": {"x": 1}},
        {"generations": {"1": -1}},
        {"generations": {"1": True}},
        {"phases_ms": {"load": "long"}},
        {"records": "7"},
        {"more": 1},
        {"v": 2},
        {"error": 5},
    ],
)
def test_what_is_not_exactly_so_is_damaged(change: dict[str, object]) -> None:
    """Unknown kinds, fields, versions, and values of another type."""
    document = json.loads(unpack(encode_outcome(DRILL), "x")) | change
    with pytest.raises(DamagedError, match=r"^here"):
        decode_outcome(json.dumps(document).encode(), "here")


def test_only_the_newest_are_kept_and_the_latest_is_found() -> None:
    """Each kind for itself; one that can't be read does not hide the one before it."""
    store = MemoryStore()
    assert outcomes.latest(store, "shop", OutcomeKind.DRILL) is None
    verify = replace(DRILL, kind=OutcomeKind.VERIFY, at=5)
    outcomes.put(store, verify)
    for number in range(outcomes.KEPT + 5):
        outcomes.put(store, replace(DRILL, at=number))
    kept = sorted(key for key in store.objects if "/drill-" in key)
    assert [int(key.split("-")[1]) for key in kept] == list(range(5, outcomes.KEPT + 5))
    assert outcomes.latest(store, "shop", OutcomeKind.VERIFY) == verify
    assert outcomes.latest(store, "shop", OutcomeKind.DRILL) == replace(DRILL, at=outcomes.KEPT + 4)
    store.objects[kept[-1]] = b"{}"
    assert outcomes.latest(store, "shop", OutcomeKind.DRILL) == replace(DRILL, at=outcomes.KEPT + 3)
    found = outcomes.newest_first(store, "shop", OutcomeKind.DRILL)
    assert [outcome.at for outcome in found] == list(range(outcomes.KEPT + 3, 4, -1))


def test_a_reader_reads_only_what_is_new() -> None:
    """One listing a look, each outcome once, and a run of another kind disturbs none; nothing at first."""
    store = MemoryStore()
    reader = outcomes.OutcomeReader(store, "shop")
    assert reader.refresh() == dict.fromkeys(OutcomeKind)
    outcomes.put(store, DRILL)
    assert reader.refresh()[OutcomeKind.DRILL] == DRILL
    store.log.clear()
    assert reader.refresh()[OutcomeKind.DRILL] == DRILL
    assert store.log == [("list", "shop/results/")]
    newer = replace(DRILL, at=DRILL.at + 1, clean=False)
    swept = replace(DRILL, kind=OutcomeKind.RETENTION)
    for outcome in (newer, swept):
        outcomes.put(store, outcome)
    found = reader.refresh()
    assert (found[OutcomeKind.DRILL], found[OutcomeKind.RETENTION], found[OutcomeKind.VERIFY]) == (newer, swept, None)


def test_their_folder_is_no_instance() -> None:
    """Retention takes what lies beside known folders for an instance's data, and an instance may not be called so."""
    folder = layout.result_prefix("shop", "drill").split("/")[1]
    assert folder in layout.FOLDERS
