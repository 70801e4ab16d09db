"""Folding chains: each rule refuses, with its own words, and a refused entry leaves no trace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from chains import OPENING, Chain, complete_generation, done_base, key, part, position, topic

from backup_avro.chain import Base, Clearing, Entry, Kind, Mark, Position, StoredObject, Taint, sha256_hex
from backup_avro.chain_json import encode_entry
from backup_avro.fold import ChainError, Generation, check

K = key()


def building() -> Chain:
    """Opened, with one partition: base [0, 100) under way by attempt 2, tail from 100 to 110."""
    chain = Chain().open()
    base = Base(start=0, end=100, leader=1, attempts=2, done=((50, 100),), open=((0, 50, 2),))
    return chain.commit({K: position(110, base=base)}, part(50, 99, scan=1), part(100, 109, start=150))


def complete() -> Chain:
    """COMPLETE, with one partition at 10."""
    return complete_generation(1, {K: 10})


def now(chain: Chain) -> Position:
    """The position of the one partition."""
    return chain.state.positions[K]


def based(chain: Chain, **base: Any) -> dict[str, Any]:
    """Content of a commit that changes the base."""
    before = now(chain)
    return {"positions": {K: replace(before, base=replace(before.base, **base))}}


def objects(chain: Chain, *items: StoredObject, offset: int = 120) -> dict[str, Any]:
    """Content of a commit that reads the tail on and brings objects."""
    return {"objects": items, "positions": {K: replace(now(chain), offset=offset)}}


Bad = Callable[[Chain], Entry]

REFUSED: dict[str, tuple[Callable[[], Chain], Bad, str]] = {
    "a number left out": (building, lambda c: c.entry(Kind.CONFIRM, seq=9), "entry 3 was expected"),
    "a number again": (building, lambda c: c.entry(Kind.CONFIRM, seq=2), "entry 3 was expected"),
    "a wrong link": (building, lambda c: c.entry(Kind.CONFIRM, prev_sha256="0" * 64), "not the hash"),
    "no OPEN first": (Chain, lambda c: c.entry(Kind.COMMIT), "OPEN comes first"),
    "OPEN twice": (building, lambda c: c.entry(Kind.OPEN, opening=OPENING), "OPEN comes first"),
    "an empty OPEN": (Chain, lambda c: c.entry(Kind.OPEN), "says nothing"),
    "OPEN by another": (Chain, lambda c: c.entry(Kind.OPEN, opening=OPENING, incarnation="b-1"), "that claimed"),
    **{
        f"{kind} by another": (building, lambda c, kind=kind: c.entry(kind, incarnation="a-0"), "holds the chain")  # type: ignore[misc]  # a default argument
        for kind in (Kind.COMMIT, Kind.CONFIRM, Kind.COMPLETE, Kind.TAINTED, Kind.CHECKPOINT, Kind.SNAPSHOT)
    },
    "SEALED by another": (complete, lambda c: c.entry(Kind.SEALED, incarnation="a-0"), "holds the chain"),
    "SEALED too early": (building, lambda c: c.entry(Kind.SEALED), "only a COMPLETE"),
    **{
        f"{kind} after SEALED": (lambda: complete().seal(), lambda c, kind=kind: c.entry(kind), "may follow SEALED")  # type: ignore[misc]  # a default argument
        for kind in Kind
        if kind not in {Kind.OPEN, Kind.CLEARING, Kind.CLEARED, Kind.TAKEOVER}
    },
    "a commit after CLEARING": (lambda: building().clearing(), lambda c: c.entry(Kind.COMMIT), "may follow SEALED"),
    "a commit after a partial CLEARED": (
        lambda: complete().seal().clearing(stays=[K]).cleared(),
        lambda c: c.entry(Kind.CONFIRM),
        "may follow SEALED",
    ),
    "anything when all is gone": (
        lambda: building().clearing().cleared(),
        lambda c: c.entry(Kind.TAKEOVER),
        "is cleared",
    ),
    "CLEARING of the unsealed": (
        complete,
        lambda c: c.entry(Kind.CLEARING, clearing=Clearing(goes=(K,), stays={})),
        "sealed before",
    ),
    "CLEARING by another": (
        lambda: complete().seal(),
        lambda c: c.entry(Kind.CLEARING, incarnation="a-0", clearing=Clearing(goes=(K,), stays={})),
        "only its holder clears",
    ),
    "CLEARING twice": (
        lambda: complete().seal().clearing(),
        lambda c: c.entry(Kind.CLEARING, clearing=Clearing(goes=(), stays={K: "no"})),
        "cleared already",
    ),
    "CLEARING without names": (lambda: complete().seal(), lambda c: c.entry(Kind.CLEARING), "does not name what"),
    "CLEARING that leaves one out": (
        lambda: complete().seal(),
        lambda c: c.entry(Kind.CLEARING, clearing=Clearing(goes=(), stays={})),
        "every partition",
    ),
    "CLEARING of a stranger": (
        lambda: complete().seal(),
        lambda c: c.entry(Kind.CLEARING, clearing=Clearing(goes=(K, key("x")), stays={})),
        "every partition",
    ),
    "going and staying": (
        lambda: complete().seal(),
        lambda c: c.entry(Kind.CLEARING, clearing=Clearing(goes=(K,), stays={K: "both"})),
        "both goes and stays",
    ),
    "what is gone comes back": (
        lambda: complete_generation(1, {K: 10, key("u"): 5}).seal().clearing(stays=[key("u")]).cleared(),
        lambda c: c.entry(Kind.CLEARING, clearing=Clearing(goes=(key("u"),), stays={K: "again"})),
        "gone already",
    ),
    "CLEARED without CLEARING": (
        lambda: complete().seal(),
        lambda c: c.entry(Kind.CLEARED, clearing=Clearing(goes=(K,), stays={})),
        "something else",
    ),
    "CLEARED of something else": (
        lambda: complete().seal().clearing(stays=[K]),
        lambda c: c.entry(Kind.CLEARED, clearing=Clearing(goes=(K,), stays={})),
        "something else",
    ),
    "CLEARED by another": (
        lambda: complete().seal().clearing(),
        lambda c: c.entry(Kind.CLEARED, incarnation="x", clearing=c.state.clearing),
        "only who cleared",
    ),
    "clearing in a commit": (
        building,
        lambda c: c.entry(Kind.COMMIT, clearing=Clearing(goes=(K,), stays={})),
        "only CLEARING and CLEARED name",
    ),
    "a position of no topic": (
        building,
        lambda c: c.entry(Kind.COMMIT, positions={key("x"): position(1)}),
        "does not know",
    ),
    "a position that goes back": (
        building,
        lambda c: c.entry(Kind.COMMIT, positions={K: replace(now(c), offset=109)}),
        "goes back from 110 to 109",
    ),
    "a head that goes back behind the base": (
        complete,
        lambda c: c.entry(Kind.COMMIT, positions={K: replace(now(c), head_at=10)}),
        "read through",
    ),
    "the head of all others goes back": (
        lambda: building().append(Kind.CONFIRM, head_at=30),
        lambda c: c.entry(Kind.CONFIRM, head_at=29),
        "goes back from 30 to 29",
    ),
    "another range": (building, lambda c: c.entry(Kind.COMMIT, **based(c, end=101)), "changes its range"),
    "another start": (building, lambda c: c.entry(Kind.COMMIT, **based(c, start=7)), "changes its range"),
    "a lower floor": (
        lambda: building().append(Kind.COMMIT, positions={K: again(building())}),
        lambda c: c.entry(Kind.COMMIT, **based(c, floor=1)),
        "goes back",
    ),
    "a floor that old attempts reach": (
        building,
        lambda c: c.entry(Kind.COMMIT, **based(c, floor=2, done=())),
        "would count",
    ),
    "fewer attempts": (building, lambda c: c.entry(Kind.COMMIT, **based(c, attempts=1)), "goes back"),
    "a void taken back": (
        lambda: building().append(Kind.COMMIT, **based(building(), void=(2,), open=())),
        lambda c: c.entry(Kind.COMMIT, **based(c, void=())),
        "takes back that an attempt is void",
    ),
    "done taken back": (building, lambda c: c.entry(Kind.COMMIT, **based(c, done=((60, 100),))), "what was done"),
    "a done base that changes": (complete, lambda c: c.entry(Kind.COMMIT, **based(c, leader=2)), "changes no more"),
    "objects in a CONFIRM": (
        building,
        lambda c: c.entry(Kind.CONFIRM, objects=(c.object(part(110, 111)),)),
        "only COMMIT and REWRITE",
    ),
    "a commit that replaces": (
        building,
        lambda c: c.entry(Kind.COMMIT, replaced=tuple(c.state.objects)),
        "only REWRITE replaces",
    ),
    "replacing what is not there": (building, lambda c: c.entry(Kind.REWRITE, replaced=("x",)), "not in the chain"),
    "replacing one twice": (
        building,
        lambda c: c.entry(Kind.REWRITE, replaced=2 * tuple(c.state.objects)),
        "an object twice",
    ),
    "one object twice": (
        building,
        lambda c: c.entry(Kind.COMMIT, **objects(c, *2 * [c.object(part(110, 111))])),
        "an object twice",
    ),
    "an object elsewhere": (
        building,
        lambda c: c.entry(Kind.COMMIT, **objects(c, replace(c.object(part(110, 111)), key="shop/b/x.avro"))),
        "lies outside",
    ),
    "an object that climbs out": (
        building,
        lambda c: c.entry(
            Kind.COMMIT,
            **objects(c, replace(c.object(part(110, 111)), key="shop/a/generation=00000001/../x.avro")),
        ),
        "lies outside",
    ),
    "an object that is there": (
        building,
        lambda c: c.entry(
            Kind.COMMIT, **objects(c, replace(c.object(part(110, 111)), key=next(iter(c.state.objects))))
        ),
        "in the chain already",
    ),
    "an object that was replaced": (
        lambda: building().append(Kind.REWRITE, replaced=tuple(building().state.objects)),
        lambda c: c.entry(
            Kind.COMMIT, **objects(c, replace(c.object(part(110, 111)), key=next(iter(c.state.replaced))))
        ),
        "in the chain already",
    ),
    "an empty object": (
        building,
        lambda c: c.entry(Kind.COMMIT, **objects(c, replace(c.object(part(110, 111)), parts=()))),
        "holds nothing",
    ),
    "records without a position": (
        building,
        lambda c: c.entry(Kind.COMMIT, objects=(c.object(part(110, 111)),)),
        "without a position",
    ),
    "tail records below the position": (
        building,
        lambda c: c.entry(Kind.COMMIT, **objects(c, c.object(part(109, 111)))),
        r"lie outside \[110, 120\)",
    ),
    "tail records above the position": (
        building,
        lambda c: c.entry(Kind.COMMIT, **objects(c, c.object(part(110, 120)))),
        r"lie outside \[110, 120\)",
    ),
    "first tail records in the base": (
        lambda: Chain().open(),
        lambda c: c.entry(
            Kind.COMMIT,
            topics=(topic(),),
            positions={K: position(110, base=done_base(100))},
            objects=(c.object(part(99, 101)),),
        ),
        r"lie outside \[100, 110\)",
    ),
    "base records beyond the base": (
        building,
        lambda c: c.entry(Kind.COMMIT, **objects(c, c.object(part(90, 100, scan=2)))),
        "outside the base",
    ),
    "an attempt that never was": (
        building,
        lambda c: c.entry(Kind.COMMIT, **objects(c, c.object(part(1, 2, scan=3)))),
        "outside the base",
    ),
    "an attempt that is over": (
        building,
        lambda c: c.entry(Kind.COMMIT, **objects(c, c.object(part(50, 60, scan=1)))),
        "was over before",
    ),
    "more records than offsets": (
        building,
        lambda c: c.entry(Kind.COMMIT, **objects(c, c.object(replace(part(110, 111), records=3)))),
        "3 records in offsets",
    ),
    "offsets upside down": (
        building,
        lambda c: c.entry(Kind.COMMIT, **objects(c, c.object(replace(part(110, 111), first=112)))),
        "records in offsets",
    ),
    "bytes beyond the object": (
        building,
        lambda c: c.entry(Kind.COMMIT, **objects(c, replace(c.object(part(110, 111)), bytes=149))),
        "of 149",
    ),
    "a rewrite of the future": (
        building,
        lambda c: c.entry(Kind.REWRITE, objects=(c.object(part(100, 110)),)),
        "not read so far",
    ),
    "a rewrite of a stranger": (
        building,
        lambda c: c.entry(Kind.REWRITE, objects=(c.object(part(1, 2, of=key("x"))),)),
        "not read so far",
    ),
    **{
        f"a TAKEOVER with {name}": (
            building,
            lambda c, content=content: c.entry(Kind.TAKEOVER, incarnation="b", **content),  # type: ignore[misc]  # as above
            "for the holder's commits",
        )
        for name, content in {
            "positions": {"positions": {K: position(500)}},
            "topics": {"topics": (topic("u"),)},
            "groups": {"groups": {"g": ()}},
            "taints": {"taints": (Taint(key=K, offset=0, reason="x"),)},
            "marks": {"marks": (Mark(at=1, offsets={K: 1}),)},
            "a head": {"head_at": 99},
        }.items()
    },
}


def again(chain: Chain) -> Position:
    """The position after the base started again."""
    before = now(chain)
    return replace(before, base=Base(start=0, end=100, leader=2, attempts=2, floor=3))


@pytest.mark.parametrize(("start", "bad", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_breaks_a_rule_is_refused_and_changes_nothing(start: Callable[[], Chain], bad: Bad, words: str) -> None:
    """Each bad entry is refused for its own reason, and the state stays as it was."""
    chain = start()
    entry = bad(chain)
    before = copy.deepcopy(chain.state)
    with pytest.raises(ChainError, match=words):
        chain.state.apply(entry, "f" * 64)
    assert chain.state == before


def test_a_life_is_folded() -> None:
    """From OPEN to CLEARED: what each entry leaves behind."""
    chain = building()
    state = chain.state
    assert (state.holder, state.seq, state.complete) == ("a-1", 2, False)
    assert state.opening == OPENING
    assert not state.read_through(K)
    before = now(chain)
    base = replace(before.base, done=((0, 100),), open=(), done_at=30)
    chain.append(Kind.COMMIT, positions={K: replace(before, base=base)}, objects=(chain.object(part(0, 49, scan=2)),))
    assert not state.read_through(K), "at head, but not since the base was done"
    chain.append(Kind.CONFIRM, head_at=31)
    assert state.read_through(K)
    assert state.head_at(K) == 31
    assert not state.usable(K), "it is not COMPLETE"
    chain.complete()
    assert state.usable(K)
    completed = (state.completed_at, state.completed_seq)
    chain.complete()
    assert (state.completed_at, state.completed_seq) == completed
    assert [moment.kind for moment in state.moments] == [Kind.COMMIT, Kind.COMMIT, Kind.CONFIRM, Kind.COMPLETE]
    chain.takeover("a-2").seal()
    assert (state.holder, state.sealed) == ("a-2", True)
    chain.clearing()
    assert not state.usable(K)
    assert not state.gone
    chain.cleared()
    assert state.gone
    assert not state.objects
    assert not state.usable(K)


def test_what_stays_stays_with_its_objects() -> None:
    """A partial clearing keeps the objects of what stays, even where they hold other partitions too."""
    other = key("u")
    chain = complete_generation(1, {K: 10, other: 5})
    chain.commit({K: position(20, head_at=30)}, part(10, 19))
    journal, own = chain.state.objects
    chain.seal().clearing(stays=[other]).cleared()
    state = chain.state
    assert list(state.objects) == [journal]
    assert own not in state.objects
    assert not state.gone
    assert state.usable(other)
    assert not state.usable(K)
    chain.clearing().cleared()
    assert state.gone


def test_one_number_speaks_for_those_that_are_not_named() -> None:
    """A position's own time counts until a later entry speaks for all that it does not name."""
    other = key("u")
    chain = Chain().open().commit({K: position(1, head_at=20), other: position(1, head_at=20)})
    chain.append(Kind.COMMIT, positions={other: position(2, head_at=25)}, head_at=40)
    assert (chain.state.head_at(K), chain.state.head_at(other)) == (40, 25)
    chain.append(Kind.CONFIRM, head_at=50)
    assert (chain.state.head_at(K), chain.state.head_at(other)) == (50, 50)


def test_the_first_taint_counts() -> None:
    """A later taint of the same partition does not widen what is sound again."""
    chain = complete().taint(7).taint(9)
    assert chain.state.sound_offset(K) == 7
    assert chain.state.sound_offset(K) <= now(chain).offset


def test_void_and_superseded_attempts_do_not_count() -> None:
    """Parts of an attempt that was given up, or from before the base started again, are no part of the backup."""
    chain = building()
    before = now(chain)
    chain.append(Kind.COMMIT, positions={K: before}, objects=(chain.object(part(0, 20, scan=2), name="half"),))
    live = {(item.first, item.scan) for _, item in chain.state.live_parts()}
    assert live == {(50, 1), (100, None), (0, 2)}
    given_up = replace(before, base=replace(before.base, open=(), void=(2,)))
    chain.append(Kind.COMMIT, positions={K: given_up})
    assert {item.scan for _, item in chain.state.live_parts()} == {1, None}
    chain.append(Kind.COMMIT, positions={K: again(chain)})
    assert {item.scan for _, item in chain.state.live_parts()} == {None}


def test_a_stranger_may_rewrite_and_clear_the_incomplete() -> None:
    """What the rules allow to anybody: REWRITE, and CLEARING with its CLEARED before COMPLETE."""
    chain = building()
    old = tuple(chain.state.objects)
    merged = chain.object(part(50, 99, scan=1), part(100, 109, start=150), name="merged")
    chain.append(Kind.REWRITE, incarnation="janitor", replaced=old, objects=(merged,))
    assert chain.state.objects == {merged.key: merged}
    assert chain.state.replaced.keys() == set(old)
    goes = Clearing(goes=(K,), stays={})
    chain.append(Kind.CLEARING, incarnation="janitor", clearing=goes)
    chain.append(Kind.CLEARED, incarnation="janitor", clearing=goes)
    assert chain.state.gone
    assert chain.state.holder == "a-1"


def test_groups_are_replaced_as_a_whole() -> None:
    """An entry names all offsets of the groups that it names, and no others change."""
    chain = complete()
    chain.append(Kind.COMMIT, groups={"g": (), "h": ()})
    assert chain.state.groups == {"g": {}, "h": {}}


def test_a_copy_stands_still() -> None:
    """What a decision was made on does not change while the chain grows."""
    chain = complete()
    copied = chain.state.frozen_copy()
    before = copy.deepcopy(copied)
    chain.commit({K: position(20, head_at=30)}, part(10, 19)).taint(15).seal().clearing().cleared()
    assert copied == before
    assert chain.state != copied


def test_reading_an_honest_chain_gives_the_same_state() -> None:
    """A reader that folds the bytes meets no rule that the writer did not."""
    chain = complete().takeover("a-2").seal().clearing().cleared()
    fresh = Chain().state
    for entry in chain.entries:
        check(fresh, entry)
        fresh.apply(entry, sha256_hex(encode_entry(entry)))
    assert fresh == chain.state
    assert isinstance(fresh, Generation)
    assert fresh.name_of(key("x", 3)) == "x-3"
