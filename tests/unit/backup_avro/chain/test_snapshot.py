"""SNAPSHOT entries: whoever begins with one has the same state as whoever read all before it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.chains import Chain, key, part, position, topic
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.document_limits import problem_of_items
from tandem.backup_avro.chain.entries import Base, Entry, EntryKind, GroupOffset, Horizon, JsonObject, Taint, sha256_hex
from tandem.backup_avro.chain.generation import ChainError, Generation
from tandem.backup_avro.chain.json_codec import canonical, decode_claim, decode_entry, dump_group, encode_entry
from tandem.backup_avro.chain.snapshot import dump_state, items_of
from tandem.backup_avro.errors import DamagedError, OversizeError
from tandem.sink.store import open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter

GOLDEN = Path(__file__).parents[3] / "golden" / "chain"
K, U = key(), key("u")
SPEC = TopicSpec("t")
MARKS = (b",", b"[", b"{")


DONE = Base(start=0, end=10, leader=1, attempts=3, done=((0, 10),), void=(1,), done_at=12)


def rich() -> Chain:
    """A chain with something of everything that a state has."""
    chain = Chain().open()
    base = Base(start=0, end=10, leader=1, attempts=2, open=((0, 5, 2),), done=((5, 10),), void=(1,))
    chain.commit({K: position(10, base=base), U: position(5)}, part(5, 9, scan=2), part(0, 4, of=U, start=150))
    chain.commit({K: position(12, base=DONE)}, part(10, 11))
    chain.append(EntryKind.CONFIRM, head_at=40, skew=-3)
    group = GroupOffset(key=K, offset=3, metadata="m")
    chain.append(EntryKind.COMMIT, groups={"g": (group,), "empty": ()}, unrecorded={"s": "share group"})
    chain.complete().taint(12)
    merged = chain.object(part(5, 11), name="merged")
    old = [item.key for item in chain.state.objects.values() if item.parts[0].key == K]
    chain.append(EntryKind.REWRITE, objects=(merged,), replaced=tuple(old[1:]))
    assert chain.state.completed_seq is not None
    swept = Horizon(seq=chain.state.completed_seq, offsets={K: 11})
    return chain.append(EntryKind.REWRITE, horizon=swept, fence=True)


def long(objects: int) -> Chain:
    """A chain of so many objects."""
    chain = Chain().open()
    chain.commit({K: position(objects)}, *(part(at, at) for at in range(objects)))
    return chain


def test_beginning_with_a_snapshot() -> None:
    """The same as reading on through it, and the same after what follows."""
    chain = rich()
    entry = chain.snapshot()
    heads = {of: chain.state.head_at(of) for of in (K, U)}
    chain.put(entry)
    late = chain.begun(entry)
    assert late == chain.state
    assert (late.horizon_seq, late.horizons, late.fence) == (chain.state.completed_seq, {K: 11}, entry.seq - 1)
    assert {of: late.head_at(of) for of in (K, U)} == heads == {K: 40, U: 40}
    assert {of: late.skew(of) for of in (K, U)} == {K: -3, U: -3}
    following = chain.entry(EntryKind.CONFIRM, head_at=50, snapshot=late.snapshot)
    chain.put(following)
    late.apply(following, sha256_hex(encode_entry(following)))
    assert late == chain.state
    assert (late.snapshot, late.earlier_snapshot) == (entry.seq, 0)


def test_an_earlier_one_can_be_found() -> None:
    """Each names the one before, for whoever wants to know what was then."""
    chain = rich()
    first = chain.snapshot()
    second = chain.put(first).snapshot()
    assert chain.put(second).begun(second).earlier_snapshot == first.seq


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"snapshot": 3}, ": it does not name itself as the latest SNAPSHOT"),
        ({"folded": {}}, ": it is not what the entries before it add up to"),
        ({"folded": None}, ": it is not what the entries before it add up to"),
        ({"head_at": 99}, ": it says more than what was said before"),
        ({"positions": {K: position(12, base=DONE)}}, "says more"),
        ({"topics": (topic(),)}, "says more"),
        ({"groups": {"g": ()}}, "says more"),
        ({"taints": (Taint(key=K, offset=12, reason="a gap"),)}, "says more"),
        ({"objects": (Chain().object(part(0, 1)),)}, "only COMMIT and REWRITE add objects"),
    ],
)
def test_what_is_no_snapshot(changes: dict[str, Any], problem: str) -> None:
    """Readers who know better refuse it, so that nobody builds on it for long."""
    chain = rich()
    before = replace(chain.state)
    with pytest.raises(ChainError, match=problem):
        chain.put(chain.snapshot(**changes))
    assert chain.state == before


@pytest.mark.parametrize("changes", [{"folded": None}, {"snapshot": 3}])
def test_what_is_no_snapshot_is_no_beginning(changes: dict[str, Any]) -> None:
    """Whoever begins with it has nothing else to go by."""
    chain = rich()
    with pytest.raises(DamagedError, match=r"^x: no SNAPSHOT, though a later entry says so"):
        chain.begun(chain.snapshot(**changes))


def test_other_entries_name_the_latest_one() -> None:
    """Whoever begins at the head has to find it."""
    chain = rich()
    with pytest.raises(ChainError, match="names 2 as the latest"):
        chain.append(EntryKind.CONFIRM, snapshot=2)
    with pytest.raises(ChainError, match=r": only SNAPSHOT holds a state"):
        chain.append(EntryKind.CONFIRM, folded={})


@pytest.mark.parametrize("field", sorted(dump_state(rich().state)))
def test_a_damaged_state(field: str) -> None:
    """A field that is missing or of another kind is named; one too many was written by a newer release."""
    entry = rich().snapshot()
    assert entry.folded is not None
    for folded in ({k: v for k, v in entry.folded.items() if k != field}, entry.folded | {field: "x"}):
        if (
            field in {"completed", "fence", "horizon", "through", "compacted_from", "unrecorded"}
            and field not in folded
        ):
            continue
        with pytest.raises(DamagedError, match="x"):
            rich().begun(replace(entry, folded=folded))
    with pytest.raises(DamagedError, match="TDM-A013"):
        rich().begun(replace(entry, folded=entry.folded | {"zz": 1}))
    with pytest.raises(DamagedError, match="is no moment"):
        rich().begun(replace(entry, folded=entry.folded | {"moments": [[1, 2, "NEVER"]]}))
    with pytest.raises(DamagedError, match="TDM-A001"):
        rich().begun(replace(entry, kind=EntryKind.CONFIRM))


@pytest.mark.parametrize(
    ("field", "junk"),
    [
        ("groups", {"g": ["?"]}),
        ("horizon", {"?": 1}),
        ("moments", ["?"]),
        ("objects", ["?"]),
        ("opening", {"?": 1}),
        ("positions", {"?": 1}),
        ("taints", ["?"]),
        ("topics", ["?"]),
        ("groups", {"g": 5}),
        ("completed", [1]),
        ("completed", [1, 2, 3]),
        ("completed", [1, "2"]),
        ("completed", [1, 1 << 63]),
        ("replaced", {"k": "now"}),
        ("replaced", {"k": 1 << 63}),
        ("moments", [[1 << 63, 1, "COMMIT"]]),
        ("moments", [[1, True, "COMMIT"]]),
    ],
)
def test_damage_deep_in_a_state_names_the_entry(field: str, junk: object) -> None:
    """Whoever reads the error has to find the object in the bucket."""
    entry = rich().snapshot()
    assert entry.folded is not None
    with pytest.raises(DamagedError, match=r"^x\b"):
        rich().begun(replace(entry, folded=entry.folded | {field: junk}))


def _elsewhere(folded: JsonObject) -> JsonObject:
    return folded | {"replaced": {"other/generations/00000001.json": 0}}


def _above(folded: JsonObject) -> JsonObject:
    (known, at), *_ = folded["replaced"].items()
    return folded | {"replaced": {"/../".join(known.rsplit("/", 1)): at}}


def _object(**changes: Any) -> Callable[[JsonObject], JsonObject]:
    def change(folded: JsonObject) -> JsonObject:
        first, *others = folded["objects"]
        return folded | {"objects": [first | changes, *others]}

    return change


def _part(**changes: Any) -> Callable[[JsonObject], JsonObject]:
    def change(folded: JsonObject) -> JsonObject:
        part = folded["objects"][0]["parts"][0]
        return _object(parts=[part | changes])(folded)

    return change


_DISORDER = "^x: its moments are not in order"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_elsewhere, "other/generations/00000001.json lies outside"),
        (_above, "lies outside"),
        (_object(key="other/generations/00000001.json"), "other/generations/00000001.json lies outside"),
        (_object(parts=[]), "holds nothing"),
        (_part(records=0), "0 records in offsets"),
        (_part(last=12), "offsets up to 12 of a partition that was not read so far"),
        (_part(topic_id=key("unknown").topic_id), "of a partition that was not read so far"),
        (lambda folded: folded | {"objects": [folded["objects"][0]] * 2}, "names an object twice"),
        (lambda folded: _object(key=next(iter(folded["replaced"])))(folded), "is replaced, and is not"),
        (lambda folded: folded | {"topics": folded["topics"][:1]}, "which it does not know"),
        (lambda folded: folded | {"through": {K.topic_id: {"0": "ten"}}}, "^x: a list of whole numbers was expected"),
        (lambda folded: folded | {"compacted_from": {"t": {"99": 0}}}, "t-99 began to be compacted, and was not read"),
        (lambda folded: folded | {"snapshot": 10}, "entry 10 is no SNAPSHOT before it"),
        (lambda folded: folded | {"snapshot": -1}, "entry -1 is no SNAPSHOT before it"),
        (lambda folded: folded | {"moments": [*folded["moments"], [10, 1, "COMMIT"]]}, _DISORDER),
        (lambda folded: folded | {"moments": [[0, 1, "COMMIT"], *folded["moments"]]}, _DISORDER),
        (lambda folded: folded | {"moments": folded["moments"][::-1]}, _DISORDER),
    ],
)
def test_a_state_to_which_no_chain_adds_up(change: Callable[[JsonObject], JsonObject], problem: str) -> None:
    """Whoever begins with it knows no better, and may delete what it says was replaced: none of it lies elsewhere."""
    chain = rich()
    entry = chain.snapshot()
    assert entry.seq == 10
    assert entry.folded is not None
    chain.begun(entry)
    with pytest.raises(DamagedError, match=problem) as caught:
        chain.begun(replace(entry, folded=change(entry.folded)))
    assert str(caught.value).startswith("x: ")


def test_the_old_chain_can_be_begun_in_the_middle() -> None:
    """The golden files have one."""
    data = (GOLDEN / "claim.json").read_bytes()
    whole = Generation(claim=decode_claim(data, "claim.json"), head_sha256=sha256_hex(data))
    late: Generation | None = None
    for path in sorted(GOLDEN.glob("[0-9]*.json")):
        data = path.read_bytes()
        entry, sha256 = decode_entry(data, path.name), sha256_hex(data)
        whole.apply(entry, sha256)
        if late is not None:
            late.apply(entry, sha256)
        if entry.kind is EntryKind.SNAPSHOT:
            late = Generation.from_snapshot(whole.claim, entry, sha256, path.name)
    assert late == whole


def chain_of(store: MemoryStore, snapshots: tuple[int, ...], entries: int) -> ChainWriter:
    """A chain with SNAPSHOTs at these numbers."""
    backup = Backup.claim(store, topics=[SPEC])
    offset = 0
    while backup.writer.state.seq < entries:
        if backup.writer.state.seq + 1 in snapshots:
            backup.writer.append(Entry(kind=EntryKind.SNAPSHOT, seq=0, prev_sha256="", incarnation="", at=0))
        else:
            backup.commit(records("t", 0, range(offset, offset + 2)))
            offset += 2
    return backup.writer


@pytest.mark.parametrize("upto", [None, 1, 7, 8, 9, 19, 20, 21, 29])
def test_a_reader_begins_with_the_latest_one(upto: int | None) -> None:
    """To the head or to an entry before: the same state, with as few reads as there can be."""
    store = MemoryStore()
    writer = chain_of(store, (8, 20), 29)
    whole = ChainReader(store, PAIR, whole=True).load(1, upto=upto)
    store.log.clear()
    late = ChainReader(store, PAIR).load(1, upto=upto)
    assert late == whole
    last = upto or 29
    begin = max(seq for seq in (0, 8, 20) if seq <= last)
    read = sum(operation == "get" and "/00000001/" in name for operation, name in store.log)
    assert read <= last - begin + 3
    if upto is None:
        assert late == writer.state


def test_a_snapshot_that_is_gone_is_named() -> None:
    """Every later entry says that it was there."""
    store = MemoryStore()
    chain_of(store, (8,), 12)
    del store.objects[layout.entry_key(PAIR, 1, 8)]
    with pytest.raises(DamagedError, match=r"00000000000000000008\.json is missing"):
        ChainReader(store, PAIR).load(1)


def test_when_one_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many entries, or so many bytes since the last one; what others append counts."""
    monkeypatch.setattr("tandem.sink.store.chain.chain_writer._SNAPSHOT_ENTRIES", 6)
    monkeypatch.setattr("tandem.sink.store.chain.chain_writer._SNAPSHOT_BYTES", 10**9)
    store = MemoryStore()
    writer = chain_of(store, (), 5)
    assert not writer.snapshot_due
    confirm = Entry(kind=EntryKind.CONFIRM, seq=0, prev_sha256="", incarnation="", at=0, head_at=10**9)
    writer.append(confirm)
    assert writer.snapshot_due
    snapshot = Entry(kind=EntryKind.SNAPSHOT, seq=0, prev_sha256="", incarnation="", at=0)
    writer.append(snapshot)
    assert not writer.snapshot_due
    size = len(store.objects[layout.entry_key(PAIR, 1, 7)])
    monkeypatch.setattr("tandem.sink.store.chain.chain_writer._SNAPSHOT_BYTES", 10)
    for _ in range(3):
        janitor = ChainWriter(store, ChainReader(store, PAIR).load(1), "janitor", stop=threading.Event())
        janitor.append(replace(snapshot, kind=EntryKind.REWRITE, reason="x" * size))
        assert not writer.snapshot_due
    writer.append(confirm)
    assert writer.snapshot_due


CONFIRM = Entry(kind=EntryKind.CONFIRM, seq=0, prev_sha256="", incarnation="", at=0)


def test_a_state_that_is_too_large_for_one_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a million objects. It is told of, not tried at each commit, and there is one once the state is smaller."""
    monkeypatch.setattr("tandem.sink.store.chain.chain_writer._SNAPSHOT_ENTRIES", 6)
    store = MemoryStore()
    writer = chain_of(store, (), 8)
    with monkeypatch.context() as smaller, capture_logs() as logs:
        smaller.setattr("tandem.backup_avro.chain.json_codec.ENTRY_JSON", 2000)
        for _ in range(3):
            writer.snapshot_if_due()
        assert not writer.snapshot_due
        writer.append(CONFIRM)
    assert [line["event"] for line in logs] == [
        "the state is too large for a SNAPSHOT: a start reads more of the chain and takes longer"
    ]
    assert logs[0]["objects"] == len(writer.state.objects) == 7
    assert (writer.state.seq, writer.state.snapshot) == (9, 0)
    for _ in range(5):
        writer.append(CONFIRM)
    writer.snapshot_if_due()
    assert writer.state.snapshot == 15
    assert ChainReader(store, PAIR).load(1) == writer.state


def test_one_that_is_too_large_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million objects that would take gigabytes and half a minute, again after each restart."""
    monkeypatch.setattr("tandem.sink.store.chain.chain_writer._SNAPSHOT_ENTRIES", 6)
    store = MemoryStore()
    writer = chain_of(store, (), 8)
    built: list[Generation] = []

    def build(state: Generation) -> JsonObject:
        built.append(state)
        return dump_state(state)

    monkeypatch.setattr("tandem.sink.store.chain.chain_writer.dump_state", build)
    for name, less in (("json_codec.ENTRY_JSON", 2000), ("document_limits.VALUES", 60)):
        with monkeypatch.context() as smaller, capture_logs() as logs:
            smaller.setattr(f"tandem.backup_avro.chain.{name}", less)
            again = ChainWriter(store, ChainReader(store, PAIR).load(1), writer.state.holder, stop=threading.Event())
            again.snapshot_if_due()
            assert (again.state.snapshot, built, len(logs)) == (0, [], 1)
            assert "its JSON has more than" in str(logs[0]["error"])
    writer.snapshot_if_due()
    assert (writer.state.snapshot, len(built)) == (9, 1)


def test_what_has_room_is_not_refused() -> None:
    """What is estimated is never more than there is, and of a state of many objects nearly all of it."""
    for chain, least in ((Chain().open(), 0.0), (rich(), 0.3), (long(200), 0.95)):
        data = encode_entry(chain.snapshot())
        items = list(items_of(chain.state))
        groups = [canonical(dump_group(one)) for of in chain.state.groups.values() for one in of.values()]
        assert all(group in items for group in groups)
        for found, there in (
            (sum(len(item) + 1 for item in items), len(data)),
            (sum(1 + sum(map(item.count, MARKS)) for item in items), sum(map(data.count, MARKS))),
        ):
            assert least * there <= found <= there
    assert problem_of_items(items, sum(len(item) + 1 for item in items)) is None
    assert problem_of_items(items, sum(len(item) + 1 for item in items) - 1) is not None


def test_a_state_is_written_in_pieces_as_it_would_be_at_once() -> None:
    """The bytes are the canonical ones, whatever is empty."""
    for chain in (Chain().open(), rich(), long(2)):
        data = encode_entry(chain.snapshot())
        assert data == canonical(json.loads(data))


@pytest.mark.parametrize("objects", [None, {}, [], [{}], "all"])
def test_a_state_with_other_objects_is_none(objects: object) -> None:
    """One more, one less, another one, or none at all: the fold refuses the entry."""
    chain = rich()
    folded = dump_state(chain.state)
    folded["objects"] = [*folded["objects"], folded["objects"][0]] if objects == "all" else objects
    with pytest.raises(ChainError, match="it is not what the entries before it add up to"):
        chain.put(chain.snapshot(folded=folded))


def test_what_is_too_large_for_the_store_was_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in doubt: the chain goes on."""
    backup = Backup.begun(open_store(tmp_path.as_uri()), records("t", 0, range(2)))
    with monkeypatch.context() as smaller:
        smaller.setattr("tandem.sink.store.signed_store.most_bytes", lambda _: 10)
        with pytest.raises(OversizeError, match="readers accept at most 10 there"):
            backup.writer.append(CONFIRM)
    assert not backup.writer.in_doubt
    backup.writer.append(CONFIRM)
    assert backup.writer.state.seq == 3


def test_a_janitor_between_two_tries() -> None:
    """Somebody else's entry takes the number: the state is written down anew, with that entry in it."""
    store = MemoryStore()
    writer = chain_of(store, (), 5)
    janitor = ChainWriter(store, ChainReader(store, PAIR).load(1), "janitor", stop=threading.Event())
    taken = [item.key for item in janitor.state.objects.values()][:1]

    def append(_: str, key_: str) -> None:
        if key_.endswith(f"{6:020d}.json"):
            store.before = lambda *_: None
            item = janitor.state.objects[taken[0]]
            janitor.append(
                Entry(
                    kind=EntryKind.REWRITE,
                    seq=0,
                    prev_sha256="",
                    incarnation="",
                    at=0,
                    objects=(replace(item, key=item.key.replace(".avro", "-merged.avro")),),
                    replaced=(item.key,),
                )
            )

    store.before = append
    entry = writer.append(Entry(kind=EntryKind.SNAPSHOT, seq=0, prev_sha256="", incarnation="", at=0))
    assert entry.seq == 7
    assert ChainReader(store, PAIR).load(1) == writer.state
