"""What became of keys since a moment: by example, and against random logs that a cleaner has been at."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from tandem.backup_avro.record.current import Record, encode
from tandem.backup_avro.record.record_spans import spans
from tandem.spark_jobs.rewind import key_changes
from tandem.spark_jobs.rewind.key_changes import (
    ChangeKind,
    KeyChange,
    KeyChoice,
    KeyReader,
    KeyStates,
    SeenKey,
    hash_key,
    header_choice,
)

BASE = Record(topic="orders", partition=0, offset=0, timestamp=5, key=b"k", value=b"v")
HEADERS = ((), (("writer", b"good"),), (("writer", b"bad"),), (("a", None), ("writer", b"bad"), ("a", b"")))


def seen(records: Iterable[Record], keyed: KeyReader | None = None) -> list[SeenKey]:
    """What bodies of a few records each come to."""
    found, left = [], list(records)
    keyed = keyed or KeyReader()
    while left:
        some, left = left[:7], left[7:]
        body = b"".join(map(encode, some))
        found += keyed.of(body, spans(body, len(some)))
    return found


def changes(old: Iterable[Record], live: Iterable[Record]) -> dict[int, KeyChange]:
    """Compare two logs as a whole."""
    states = KeyStates()
    states.merge(seen(old), seen(live))
    return {change.key: change for change in states.changes()}


def record(offset: int, value: str | None, *, headers: tuple[tuple[str, bytes | None], ...] = ()) -> Record:
    """A record of the one key."""
    return replace(BASE, offset=offset, value=None if value is None else value.encode(), headers=headers)


@pytest.mark.parametrize(
    ("old", "live", "kind"),
    [
        ([record(3, "a")], [record(3, "a")], None),
        ([record(3, "a")], [record(3, "a"), record(5, "b")], ChangeKind.CHANGED),
        ([record(3, "a")], [record(5, "a")], None),  # written again with the same contents
        ([record(3, "a")], [record(5, "a", headers=HEADERS[1])], ChangeKind.CHANGED),
        ([record(3, "")], [record(3, ""), record(5, None)], ChangeKind.DELETED),
        ([record(3, "")], [record(5, None)], ChangeKind.DELETED),
        ([record(3, "a")], [], ChangeKind.DELETED),
        ([], [record(5, "")], ChangeKind.CREATED),
        ([record(3, None)], [record(5, "a")], ChangeKind.CREATED),
        ([record(3, "a"), record(4, None)], [record(5, "a")], ChangeKind.CREATED),
        ([record(3, "a"), record(4, None)], [record(4, None), record(6, None)], None),
        ([record(3, None)], [], None),
        ([record(3, "a"), record(4, "b")], [record(3, "a")], ChangeKind.CHANGED),  # the log was cut
        ([record(3, "a")], [record(3, "b")], ChangeKind.CHANGED),  # cut, and grown again
        ([replace(record(3, "a"), timestamp=1)], [replace(record(3, "a"), timestamp=2)], None),
    ],
)
def test_what_became_of_a_key(old: list[Record], live: list[Record], kind: ChangeKind | None) -> None:
    """One key, every way in which the two sides can have it."""
    found = changes(old, live)
    assert [change.kind for change in found.values()] == ([] if kind is None else [kind])


def compacted(log: list[Record], chance: random.Random, *, sound_from: int) -> list[Record]:
    """What a cleaner may leave below `sound_from`: of superseded records any; a tombstone goes after all before it."""
    newest = {item.key: item for item in log if item.key is not None}
    gone = {
        key for key, item in newest.items() if item.value is None and item.offset < sound_from and chance.random() < 0.5
    }
    return [
        item
        for item in log
        if item.offset >= sound_from
        or (item.key not in gone and (item is newest.get(item.key) or chance.random() < 0.5))
    ]


def history(chance: random.Random) -> tuple[list[Record], int]:
    """A log of few keys, some records without a key, and a moment in it."""
    size = chance.randrange(1, 120)
    log = [
        replace(
            BASE,
            offset=offset,
            timestamp=chance.randrange(100),
            key=None if chance.random() < 0.1 else b"key-%d" % chance.randrange(chance.choice([3, 40])),
            value=chance.choice([None, b"", b"a", b"b", b"c"]),
            headers=chance.choice(HEADERS),
        )
        for offset in range(size)
    ]
    return log, chance.randrange(size + 1)


Contents = tuple[bytes, tuple[tuple[str, bytes | None], ...]]


def state_of(log: Iterable[Record]) -> dict[bytes, Contents]:
    """The plain truth: the value and headers of each key that has one."""
    found: dict[bytes, Contents] = {}
    for item in log:
        if item.key is not None and item.value is None:
            found.pop(item.key, None)
        elif item.key is not None and item.value is not None:
            found[item.key] = (item.value, item.headers)
    return found


def expected(before: Mapping[bytes, Contents], after: Mapping[bytes, Contents]) -> dict[int, ChangeKind]:
    """The differences of two dictionaries."""
    found = {}
    for key in before.keys() | after.keys():
        if before.get(key) != after.get(key):
            kind = ChangeKind.CHANGED
            if key not in before:
                kind = ChangeKind.CREATED
            elif key not in after:
                kind = ChangeKind.DELETED
            found[hash_key(key)] = kind
    return found


@pytest.mark.parametrize("seed", range(150))
def test_changes_are_the_differences_of_two_dictionaries(seed: int) -> None:
    """Whatever compaction has done to either side, in whichever number of buckets."""
    chance = random.Random(seed)
    log, moment = history(chance)
    old = compacted(log[:moment], chance, sound_from=chance.randrange(moment + 1))
    live = compacted(log, chance, sound_from=chance.randrange(len(log) + 1))
    wanted = expected(state_of(log[:moment]), state_of(log))
    assert {key: change.kind for key, change in changes(old, live).items()} == wanted
    buckets = chance.choice([2, 5])
    found: dict[int, ChangeKind] = {}
    dropped = 0
    for bucket in range(buckets):
        states, keyed = KeyStates(), KeyReader(bucket, buckets)
        states.merge(seen(old, KeyReader(bucket, buckets)), seen(live, keyed))
        found |= {change.key: change.kind for change in states.changes()}
        dropped += keyed.without_key
    assert found == wanted
    assert dropped == sum(item.key is None for item in live)


@pytest.mark.parametrize("seed", range(60))
def test_a_choice_leaves_out_keys_by_their_newest_record(seed: int) -> None:
    """By key, by place, by header, and all of them together."""
    chance = random.Random(seed)
    log, moment = history(chance)
    newest = {item.key: item for item in log}
    since, until = sorted((chance.randrange(len(log) + 1), chance.randrange(len(log) + 1)))
    keys = frozenset(hash_key(b"key-%d" % number) for number in range(0, 40, 2))
    name, value = "writer", b"bad"
    states = KeyStates()
    states.merge(seen(log[:moment]), seen(log, KeyReader(header=header_choice(name, value.decode()))))
    found = {change.key: change for change in states.changes()}
    by_hash = {hash_key(key): item for key, item in newest.items() if key is not None}
    conditions = {
        "keys": (keys, lambda item: hash_key(item.key) in keys),
        "since": ({0: since}, lambda item: item.offset >= since),
        "until": ({0: until}, lambda item: item.offset < until),
        "header": ((name, value), lambda item: (name, value) in item.headers),
        "within": (
            {0: ((since - 3, since - 1), (until, until))},
            lambda item: item.offset in {*range(since - 3, since), until},
        ),
    }
    for some in ([], *([one] for one in conditions), [*conditions], ["since", "until"]):
        choice = KeyChoice(**{one: conditions[one][0] for one in some})  # type: ignore[arg-type]  # by name
        included = {key for key, change in found.items() if choice.includes(0, change)}
        assert included == {key for key in found if all(conditions[one][1](by_hash[key]) for one in some)}
        if {"since", "until", "within"} & set(some):
            assert not any(choice.includes(1, change) for change in found.values())  # a partition that none names


def test_a_key_without_a_record_is_left_out_by_conditions_about_it() -> None:
    """Nothing is known of what removed it."""
    [change] = changes([record(3, "a")], []).values()
    assert KeyChoice().includes(0, change)
    assert KeyChoice(keys=frozenset([hash_key(b"k")])).includes(0, change)
    for choice in (
        KeyChoice(since={0: 0}),
        KeyChoice(until={0: 99}),
        KeyChoice(header=("a", b"b")),
        KeyChoice(within={0: ((0, 99),)}),
    ):
        assert not choice.includes(0, change)


def test_large_partitions_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket for each started number of records."""
    monkeypatch.setattr(key_changes, "BUCKET_RECORDS", 10)
    assert [key_changes.bucket_count(records) for records in (0, 1, 10, 11, 95)] == [1, 1, 1, 2, 10]
