"""Folding chains: each rule refuses, with its own words, and a refused entry leaves no trace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.backups.chains import OPENING, Chain, complete_generation, done_base, key, part, position, topic

from tandem.backup_avro.chain.entries import (
    Base,
    Clearing,
    Entry,
    EntryKind,
    Mark,
    Position,
    StoredObject,
    Taint,
    sha256_hex,
)
from tandem.backup_avro.chain.generation import ChainError, Generation, check
from tandem.backup_avro.chain.json_codec import encode_entry
from tandem.backup_avro.chain.object_rules import object_problem
from tandem.backup_avro.chain.snapshot import dump_state
from tandem.backup_avro.record.envelope import Envelope

K = key()
ENVELOPE = Envelope(key_id="0" * 16, data_key=bytes(40))


def building() -> Chain:
    """Opened, with one partition: base [0, 100) under way by attempt 2, tail from 100 to 110."""
    chain = Chain().open()
    base = Base(start=0, end=100, leader=1, attempts=2, done=((50, 100),), open=((0, 50, 2),))
    return chain.commit({K: position(110, base=base)}, part(50, 99, scan=1), part(100, 109, start=150))


def complete() -> Chain:
    """COMPLETE, with one partition at 10."""
    return complete_generation(1, {K: 10})


CUT = Taint(key=K, offset=10, reason="the log was cut", cut_at=7, epoch=0)


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


def sealed() -> Chain:
    return complete().seal()


def rewritten() -> Chain:
    """Under way, and what its objects held is held by none any more."""
    return building().append(EntryKind.REWRITE, replaced=tuple(building().state.objects))


Bad = Callable[[Chain], Entry]


def refused(words: str, bad: Bad, start: Callable[[], Chain] = building) -> tuple[Callable[[], Chain], Bad, str]:
    """What is said of an entry, the entry, and the chain that it would follow."""
    return start, bad, words


FIRST, NEXT = (f"shop/a/generation=00000001/journal/{seq}.avro" for seq in (1, 2))
HOLDER = "written by incarnation a-0, but a-1 holds the chain"
OVER = "nothing but CLEARING and CLEARED may follow SEALED or CLEARING"

REFUSED = {
    "a number left out": refused("entry 3 was expected", lambda c: c.entry(EntryKind.CONFIRM, seq=9)),
    "a number again": refused("entry 3 was expected", lambda c: c.entry(EntryKind.CONFIRM, seq=2)),
    "a wrong link": refused(
        "its link is not the hash of the entry before it", lambda c: c.entry(EntryKind.CONFIRM, prev_sha256="0" * 64)
    ),
    "no OPEN first": refused("OPEN comes first and once", lambda c: c.entry(EntryKind.COMMIT), start=Chain),
    "OPEN twice": refused("OPEN comes first and once", lambda c: c.entry(EntryKind.OPEN, opening=OPENING)),
    "an empty OPEN": refused("OPEN says nothing", lambda c: c.entry(EntryKind.OPEN), start=Chain),
    "OPEN by another": refused(
        "OPEN is written by the incarnation that claimed the number",
        lambda c: c.entry(EntryKind.OPEN, opening=OPENING, incarnation="b-1"),
        start=Chain,
    ),
    **{
        f"{kind} by another": refused(HOLDER, lambda c, kind=kind: c.entry(kind, incarnation="a-0"))  # type: ignore[misc]  # a default argument
        for kind in (
            EntryKind.COMMIT,
            EntryKind.CONFIRM,
            EntryKind.COMPLETE,
            EntryKind.TAINTED,
            EntryKind.CHECKPOINT,
            EntryKind.SNAPSHOT,
        )
    },
    "a gap of a COMPLETE generation, told of by another": refused(
        HOLDER,
        lambda c: c.entry(EntryKind.TAINTED, incarnation="a-0", taints=(Taint(key=K, offset=5, reason="a gap"),)),
        start=complete,
    ),
    "a cut of a build, told of by another": refused(
        HOLDER, lambda c: c.entry(EntryKind.TAINTED, incarnation="a-0", taints=(CUT,))
    ),
    "nothing, told of by another": refused(
        HOLDER, lambda c: c.entry(EntryKind.TAINTED, incarnation="a-0"), start=complete
    ),
    "SEALED by another": refused(HOLDER, lambda c: c.entry(EntryKind.SEALED, incarnation="a-0"), start=complete),
    "SEALED too early": refused("only a COMPLETE generation is sealed", lambda c: c.entry(EntryKind.SEALED)),
    **{
        f"{kind} after SEALED": refused(OVER, lambda c, kind=kind: c.entry(kind), start=sealed)  # type: ignore[misc]  # a default argument
        for kind in EntryKind
        if kind not in {EntryKind.OPEN, EntryKind.CLEARING, EntryKind.CLEARED, EntryKind.TAKEOVER}
    },
    "a commit after CLEARING": refused(OVER, lambda c: c.entry(EntryKind.COMMIT), start=lambda: building().clearing()),
    "a commit after a partial CLEARED": refused(
        OVER, lambda c: c.entry(EntryKind.CONFIRM), start=lambda: complete().seal().clearing(stays=[K]).cleared()
    ),
    "anything when all is gone": refused(
        "the generation is cleared",
        lambda c: c.entry(EntryKind.TAKEOVER),
        start=lambda: building().clearing().cleared(),
    ),
    "CLEARING of the unsealed": refused(
        "a COMPLETE generation is sealed before it is cleared",
        lambda c: c.entry(EntryKind.CLEARING, clearing=Clearing(goes=(K,), stays={})),
        start=complete,
    ),
    "CLEARING by another": refused(
        "only its holder clears a generation that was COMPLETE",
        lambda c: c.entry(EntryKind.CLEARING, incarnation="a-0", clearing=Clearing(goes=(K,), stays={})),
        start=sealed,
    ),
    "CLEARING twice": refused(
        "it is being cleared already",
        lambda c: c.entry(EntryKind.CLEARING, clearing=Clearing(goes=(), stays={K: "no"})),
        start=lambda: complete().seal().clearing(),
    ),
    "CLEARING without names": refused(
        "it does not name what goes and what stays", lambda c: c.entry(EntryKind.CLEARING), start=sealed
    ),
    "CLEARING that leaves one out": refused(
        "it does not name every partition",
        lambda c: c.entry(EntryKind.CLEARING, clearing=Clearing(goes=(), stays={})),
        start=sealed,
    ),
    "CLEARING of a stranger": refused(
        "it does not name every partition",
        lambda c: c.entry(EntryKind.CLEARING, clearing=Clearing(goes=(K, key("x")), stays={})),
        start=sealed,
    ),
    "going and staying": refused(
        "a partition both goes and stays",
        lambda c: c.entry(EntryKind.CLEARING, clearing=Clearing(goes=(K,), stays={K: "both"})),
        start=sealed,
    ),
    "what is gone comes back": refused(
        "what is gone already can't stay",
        lambda c: c.entry(EntryKind.CLEARING, clearing=Clearing(goes=(key("u"),), stays={K: "again"})),
        start=lambda: complete_generation(1, {K: 10, key("u"): 5}).seal().clearing(stays=[key("u")]).cleared(),
    ),
    "CLEARED without CLEARING": refused(
        "it names something else than the CLEARING before it",
        lambda c: c.entry(EntryKind.CLEARED, clearing=Clearing(goes=(K,), stays={})),
        start=sealed,
    ),
    "CLEARED of something else": refused(
        "it names something else than the CLEARING before it",
        lambda c: c.entry(EntryKind.CLEARED, clearing=Clearing(goes=(K,), stays={})),
        start=lambda: complete().seal().clearing(stays=[K]),
    ),
    "CLEARED by another": refused(
        "only who cleared it says that it is cleared",
        lambda c: c.entry(EntryKind.CLEARED, incarnation="x", clearing=c.state.clearing),
        start=lambda: complete().seal().clearing(),
    ),
    "clearing in a commit": refused(
        "only CLEARING and CLEARED name what goes",
        lambda c: c.entry(EntryKind.COMMIT, clearing=Clearing(goes=(K,), stays={})),
    ),
    "a position of no topic": refused(
        "a position of topic id x, which the chain does not know",
        lambda c: c.entry(EntryKind.COMMIT, positions={key("x"): position(1)}),
    ),
    "a position that goes back": refused(
        "the position of t-0 goes back from 110 to 109",
        lambda c: c.entry(EntryKind.COMMIT, positions={K: replace(now(c), offset=109)}),
    ),
    "a position that goes back behind a new one": refused(
        "the position of t-0 goes back from 110 to 109",
        lambda c: c.entry(
            EntryKind.COMMIT, topics=(topic("u"),), positions={key("u"): position(5), K: replace(now(c), offset=109)}
        ),
    ),
    "a head that goes back behind the base": refused(
        "t-0 was read through, and its time at head goes back behind that",
        lambda c: c.entry(EntryKind.COMMIT, positions={K: replace(now(c), head_at=10)}),
        start=complete,
    ),
    "the head of all others goes back": refused(
        "the time at which all was at head goes back from 30 to 29",
        lambda c: c.entry(EntryKind.CONFIRM, head_at=29),
        start=lambda: building().append(EntryKind.CONFIRM, head_at=30),
    ),
    "another range": refused(
        "the base of t-0 changes its range without starting again",
        lambda c: c.entry(EntryKind.COMMIT, **based(c, end=101)),
    ),
    "another start": refused(
        "the base of t-0 changes its range without starting again",
        lambda c: c.entry(EntryKind.COMMIT, **based(c, start=7)),
    ),
    "a lower floor": refused(
        "the base of t-0 goes back",
        lambda c: c.entry(EntryKind.COMMIT, **based(c, floor=1)),
        start=lambda: building().append(EntryKind.COMMIT, positions={K: again(building())}),
    ),
    "a floor that old attempts reach": refused(
        "the base of t-0 starts again, but attempts made before would count",
        lambda c: c.entry(EntryKind.COMMIT, **based(c, floor=2, done=())),
    ),
    "fewer attempts": refused("the base of t-0 goes back", lambda c: c.entry(EntryKind.COMMIT, **based(c, attempts=1))),
    "a void taken back": refused(
        "the base of t-0 takes back that an attempt is void",
        lambda c: c.entry(EntryKind.COMMIT, **based(c, void=())),
        start=lambda: building().append(EntryKind.COMMIT, **based(building(), void=(2,), open=())),
    ),
    "done taken back": refused(
        "the base of t-0 takes back what was done", lambda c: c.entry(EntryKind.COMMIT, **based(c, done=((60, 100),)))
    ),
    "a done base that changes": refused(
        "the base of t-0 is done and changes no more",
        lambda c: c.entry(EntryKind.COMMIT, **based(c, leader=2)),
        start=complete,
    ),
    "objects in a CONFIRM": refused(
        "only COMMIT and REWRITE add objects", lambda c: c.entry(EntryKind.CONFIRM, objects=(c.object(part(110, 111)),))
    ),
    "a commit that replaces": refused(
        "only REWRITE replaces objects", lambda c: c.entry(EntryKind.COMMIT, replaced=tuple(c.state.objects))
    ),
    "replacing what is not there": refused(
        "x is replaced, but is not in the chain", lambda c: c.entry(EntryKind.REWRITE, replaced=("x",))
    ),
    "replacing one twice": refused(
        "it names an object twice", lambda c: c.entry(EntryKind.REWRITE, replaced=2 * tuple(c.state.objects))
    ),
    "one object twice": refused(
        "it names an object twice", lambda c: c.entry(EntryKind.COMMIT, **objects(c, *2 * [c.object(part(110, 111))]))
    ),
    "an object elsewhere": refused(
        "shop/b/x.avro lies outside shop/a/generation=00000001/",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, replace(c.object(part(110, 111)), key="shop/b/x.avro"))),
    ),
    "an object that climbs out": refused(
        "shop/a/generation=00000001/../x.avro lies outside shop/a/generation=00000001/",
        lambda c: c.entry(
            EntryKind.COMMIT,
            **objects(c, replace(c.object(part(110, 111)), key="shop/a/generation=00000001/../x.avro")),
        ),
    ),
    "an object that is there": refused(
        f"{FIRST} is in the chain already",
        lambda c: c.entry(
            EntryKind.COMMIT, **objects(c, replace(c.object(part(110, 111)), key=next(iter(c.state.objects))))
        ),
    ),
    "an object that was replaced": refused(
        f"{FIRST} is in the chain already",
        lambda c: c.entry(
            EntryKind.COMMIT, **objects(c, replace(c.object(part(110, 111)), key=next(iter(c.state.replaced))))
        ),
        start=rewritten,
    ),
    "deletion of what was never replaced": refused(
        f"{FIRST} is said to be deleted, but was not replaced before",
        lambda c: c.entry(EntryKind.REWRITE, deleted=tuple(c.state.objects)),
    ),
    "deletion of the same twice": refused(
        "it names an object twice",
        lambda c: c.entry(EntryKind.REWRITE, deleted=2 * tuple(c.state.replaced)),
        start=rewritten,
    ),
    "a commit that says what was deleted": refused(
        "only REWRITE replaces objects",
        lambda c: c.entry(EntryKind.COMMIT, deleted=tuple(c.state.replaced)),
        start=rewritten,
    ),
    "an encrypted object of a size that none has": refused(
        f"{NEXT}: no encrypted object has 9 bytes",
        lambda c: c.entry(
            EntryKind.COMMIT, **objects(c, replace(c.object(part(110, 111)), envelope=ENVELOPE, bytes=9))
        ),
    ),
    "a part beyond the plain bytes of an encrypted object": refused(
        f"{NEXT}: bytes 100 to 150 of 149",
        lambda c: c.entry(
            EntryKind.COMMIT,
            **objects(c, replace(c.object(part(110, 111)), envelope=ENVELOPE, bytes=ENVELOPE.stored_size(149))),
        ),
    ),
    "a journal without hashes": refused(
        f"{NEXT} is a journal, and not all of its parts have a hash",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, replace(c.object(part(110, 111)), journal=True))),
    ),
    "an empty object": refused(
        f"{NEXT} holds nothing",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, replace(c.object(part(110, 111)), parts=()))),
    ),
    "records without a position": refused(
        f"{NEXT}: records without a position", lambda c: c.entry(EntryKind.COMMIT, objects=(c.object(part(110, 111)),))
    ),
    "tail records below the position": refused(
        f"{NEXT}: offsets 109 to 111 lie outside [110, 120)",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, c.object(part(109, 111)))),
    ),
    "tail records above the position": refused(
        f"{NEXT}: offsets 110 to 120 lie outside [110, 120)",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, c.object(part(110, 120)))),
    ),
    "first tail records in the base": refused(
        f"{FIRST}: offsets 99 to 101 lie outside [100, 110)",
        lambda c: c.entry(
            EntryKind.COMMIT,
            topics=(topic(),),
            positions={K: position(110, base=done_base(100))},
            objects=(c.object(part(99, 101)),),
        ),
        start=lambda: Chain().open(),
    ),
    "base records beyond the base": refused(
        f"{NEXT}: offsets 90 to 100 lie outside the base",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, c.object(part(90, 100, scan=2)))),
    ),
    "an attempt that never was": refused(
        f"{NEXT}: offsets 1 to 2 lie outside the base",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, c.object(part(1, 2, scan=3)))),
    ),
    "an attempt that is over": refused(
        f"{NEXT}: attempt 1 at the base was over before",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, c.object(part(50, 60, scan=1)))),
    ),
    "the last attempt, which is over": refused(
        "shop/a/generation=00000001/journal/3.avro: attempt 2 at the base was over before",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, c.object(part(0, 9, scan=2)))),
        start=lambda: building().append(EntryKind.COMMIT, **based(building(), void=(2,), open=())),
    ),
    "no records": refused(
        f"{NEXT}: 0 records in offsets 110 to 111",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, c.object(replace(part(110, 111), records=0)))),
    ),
    "more records than offsets": refused(
        f"{NEXT}: 3 records in offsets 110 to 111",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, c.object(replace(part(110, 111), records=3)))),
    ),
    "offsets upside down": refused(
        f"{NEXT}: 2 records in offsets 112 to 111",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, c.object(replace(part(110, 111), first=112)))),
    ),
    "bytes beyond the object": refused(
        f"{NEXT}: bytes 100 to 150 of 149",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, replace(c.object(part(110, 111)), bytes=149))),
    ),
    "bytes where the header of the file is": refused(
        f"{NEXT}: bytes 0 to 50 of 50",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, c.object(part(110, 111, start=0)))),
    ),
    "no bytes": refused(
        f"{NEXT}: bytes 100 to 100 of 100",
        lambda c: c.entry(EntryKind.COMMIT, **objects(c, c.object(replace(part(110, 111), end=100)))),
    ),
    "a rewrite of the future": refused(
        f"{NEXT}: offsets up to 110 of a partition that was not read so far",
        lambda c: c.entry(EntryKind.REWRITE, objects=(c.object(part(100, 110)),)),
    ),
    "a rewrite of a stranger": refused(
        f"{NEXT}: offsets up to 2 of a partition that was not read so far",
        lambda c: c.entry(EntryKind.REWRITE, objects=(c.object(part(1, 2, of=key("x"))),)),
    ),
    **{
        f"a TAKEOVER with {name}": refused(
            "what is read of the cluster is for the holder's commits to say",
            lambda c, content=content: c.entry(EntryKind.TAKEOVER, incarnation="b", **content),
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
    with pytest.raises(ChainError) as refused:
        chain.state.apply(entry, "f" * 64)
    assert str(refused.value) == f"generation 1, entry {entry.seq} ({entry.kind}): {words}"
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
    chain.append(
        EntryKind.COMMIT, positions={K: replace(before, base=base)}, objects=(chain.object(part(0, 49, scan=2)),)
    )
    assert not state.read_through(K), "at head, but not since the base was done"
    chain.append(EntryKind.CONFIRM, head_at=31)
    assert state.read_through(K)
    assert state.head_at(K) == 31
    assert not state.usable(K), "it is not COMPLETE"
    chain.complete()
    assert state.usable(K)
    assert (state.completed_at, state.completed_seq) == (5, 5), "each entry came 1 ms after the one before"
    chain.complete()
    assert (state.completed_at, state.completed_seq) == (5, 5)
    assert [(moment.seq, moment.at, moment.kind) for moment in state.moments] == [
        (2, 2, EntryKind.COMMIT),
        (3, 3, EntryKind.COMMIT),
        (4, 4, EntryKind.CONFIRM),
        (5, 5, EntryKind.COMPLETE),
    ]
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
    chain.append(EntryKind.COMMIT, positions={other: position(2, head_at=25)}, head_at=40)
    assert (chain.state.head_at(K), chain.state.head_at(other)) == (40, 25)
    chain.append(EntryKind.CONFIRM, head_at=50)
    assert (chain.state.head_at(K), chain.state.head_at(other)) == (50, 50)


def test_what_was_seen_at_head_is_known_by_the_clock_of_who_saw_it() -> None:
    """An entry tells its writer's clock for all times in it, but for those that it takes over from an earlier one."""
    other = key("u")
    first = {K: position(1, head_at=20), other: position(1, head_at=20)}
    chain = Chain().open().append(EntryKind.COMMIT, topics=(topic(), topic("u")), positions=first)
    assert chain.state.skew(K) is None, "entries of the first releases do not say it"
    chain.append(EntryKind.COMMIT, positions={other: position(2, head_at=25)}, head_at=40, skew=3)
    assert (chain.state.skew(K), chain.state.skew(other)) == (3, 3)
    taken_over = replace(position(3, head_at=25), skew=3)
    chain.append(EntryKind.COMMIT, positions={other: taken_over, K: position(1, head_at=60)}, skew=-90)
    assert (chain.state.skew(K), chain.state.skew(other)) == (-90, 3)
    chain.append(EntryKind.CONFIRM, head_at=50, skew=-91)
    assert (chain.state.head_at(K), chain.state.skew(K)) == (60, -90)
    assert (chain.state.head_at(other), chain.state.skew(other)) == (50, -91)
    assert chain.state.restated(other) == replace(taken_over, head_at=50, skew=-91)
    chain.append(EntryKind.CONFIRM, head_at=60, skew=-92)
    assert (chain.state.head_at(K), chain.state.skew(K)) == (60, -92), "who said it last"
    taken_over = replace(position(1, head_at=61), skew=4)
    chain.append(EntryKind.COMMIT, positions={K: taken_over}, head_at=62, skew=-93)
    assert (chain.state.head_at(K), chain.state.skew(K)) == (61, 4)


def test_the_same_time_may_be_said_again() -> None:
    """The store's clock stands still for less than a millisecond at times: only going back is refused."""
    chain = building().append(EntryKind.CONFIRM, head_at=30).append(EntryKind.CONFIRM, head_at=30)
    assert chain.state.heads == (4, 30)


def test_the_first_taint_counts() -> None:
    """A later taint of the same partition does not widen what is sound again."""
    chain = complete().taint(7).taint(9)
    assert chain.state.sound_offset(K) == 7
    assert chain.state.sound_offset(K) <= now(chain).offset
    chain.append(EntryKind.TAINTED, taints=(Taint(key=K, offset=7, reason="an object is missing"),))
    assert chain.state.taints == {K: Taint(key=K, offset=7, reason="a gap")}


def test_anybody_marks_what_the_log_of_a_complete_generation_has_lost() -> None:
    """Its holder may be gone for good. Nothing goes because of that: the records are kept, and cover nothing."""
    chain = complete()
    chain.append(EntryKind.TAINTED, incarnation="b-1", taints=(CUT,))
    assert chain.state.taints == {K: CUT}
    assert chain.state.holder == "a-1", "who goes on"
    chain.append(EntryKind.CONFIRM, head_at=chain.state.at)


def test_a_later_taint_further_down_counts() -> None:
    """An object that is missed later may lie below the gap that was noticed first: nothing above it is sound."""
    chain = (
        complete()
        .taint(9, epoch=4, cut_at=8)
        .append(EntryKind.TAINTED, taints=(Taint(key=K, offset=0, reason="an object is missing"),))
    )
    assert chain.state.taints == {K: Taint(key=K, offset=0, reason="an object is missing", cut_at=8)}
    assert chain.state.sound_offset(K) == 0
    assert chain.taint(9, cut_at=6).state.taints[K].cut_at == 6


@pytest.mark.parametrize(
    ("cuts", "lowest"),
    [((None, None), None), ((None, 8), 8), ((8, None), 8), ((8, 6), 6), ((6, 8), 6), ((8, -1, None), -1)],
)
def test_the_lowest_cut_counts(cuts: tuple[int | None, ...], lowest: int | None) -> None:
    """A log may be cut again, further down: what is left is what no cut took. The taint stays where it was first."""
    chain = complete()
    for number, cut_at in enumerate(cuts):
        chain.taint(9 + number, cut_at=cut_at)
    assert chain.state.taints == {K: Taint(key=K, offset=9, reason="a gap", cut_at=lowest)}


def test_void_and_superseded_attempts_do_not_count() -> None:
    """Parts of an attempt that was given up, or from before the base started again, are no part of the backup."""
    chain = building()
    before = now(chain)
    chain.append(EntryKind.COMMIT, positions={K: before}, objects=(chain.object(part(0, 20, scan=2), name="half"),))
    live = {(item.first, item.scan) for _, item in chain.state.live_parts()}
    assert live == {(50, 1), (100, None), (0, 2)}
    given_up = replace(before, base=replace(before.base, open=(), void=(2,)))
    chain.append(EntryKind.COMMIT, positions={K: given_up})
    assert {item.scan for _, item in chain.state.live_parts()} == {1, None}
    chain.append(EntryKind.COMMIT, positions={K: again(chain)})
    assert {item.scan for _, item in chain.state.live_parts()} == {None}


def test_a_stranger_may_rewrite_and_clear_the_incomplete() -> None:
    """What the rules allow to anybody: REWRITE, and CLEARING with its CLEARED before COMPLETE."""
    chain = building()
    old = tuple(chain.state.objects)
    merged = chain.object(part(50, 99, scan=1), part(100, 109, start=150), name="merged")
    chain.append(EntryKind.REWRITE, incarnation="janitor", replaced=old, objects=(merged,))
    assert chain.state.objects == {merged.key: merged}
    assert chain.state.replaced == dict.fromkeys(old, 3), "when they were superseded"
    chain.append(EntryKind.REWRITE, incarnation="janitor", deleted=old[:1])
    assert chain.state.replaced.keys() == set(old[1:]), "what is deleted is forgotten"
    goes = Clearing(goes=(K,), stays={})
    chain.append(EntryKind.CLEARING, incarnation="janitor", clearing=goes)
    chain.append(EntryKind.CLEARED, incarnation="janitor", clearing=goes)
    assert chain.state.gone
    assert chain.state.holder == "a-1"


def test_groups_are_replaced_as_a_whole() -> None:
    """An entry names all offsets of the groups that it names, and no others change."""
    chain = complete()
    chain.append(EntryKind.COMMIT, groups={"g": (), "h": ()})
    assert chain.state.groups == {"g": {}, "h": {}}


def test_unrecorded_groups_are_named_as_a_whole() -> None:
    """Each entry that names them names all; others leave them as they were; only the holder's commits do."""
    chain = complete()
    chain.append(EntryKind.COMMIT, unrecorded={"s": "share group", "d": "not allowed"})
    chain.append(EntryKind.CONFIRM)
    assert chain.state.unrecorded == {"s": "share group", "d": "not allowed"}
    with pytest.raises(ChainError, match="for the holder's commits to say"):
        chain.append(EntryKind.REWRITE, incarnation="janitor", unrecorded={})
    chain.append(EntryKind.COMMIT, unrecorded={"d": "not allowed"})
    assert chain.state.unrecorded == {"d": "not allowed"}
    chain.append(EntryKind.COMMIT, unrecorded={})
    assert chain.state.unrecorded == {}


def test_a_copy_stands_still() -> None:
    """All that is known is in it, and what a decision was made on does not change while the chain grows."""
    other = key("u")
    chain = complete_generation(1, {K: 10, other: 5})
    chain.append(EntryKind.COMMIT, groups={"g": ()})
    chain.append(EntryKind.REWRITE, replaced=tuple(chain.state.objects), objects=(chain.object(part(0, 9)),))
    chain.taint(5, other)
    copied = chain.state.frozen_copy()
    assert copied == chain.state
    before = copy.deepcopy(copied)
    chain.commit({K: position(20, head_at=30)}, part(10, 19), topics=(topic(removed=True),), groups={"g": (), "h": ()})
    chain.append(EntryKind.REWRITE, replaced=tuple(chain.state.objects))
    assert copied == before, "whatever changed in place"
    chain.taint(15).seal().clearing().cleared()
    assert copied == before
    assert chain.state != copied
    own = [name for name in Generation.__slots__ if isinstance(getattr(copied, name), dict | list)]
    assert "skews" in own
    state = chain.state.frozen_copy()
    shared = [name for name in own if getattr(state, name) is getattr(chain.state, name)]
    assert shared == ["compacted_before", "missing"], "of OPEN, and of pictures: they never change"


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


def test_an_encrypted_journal_without_hashes_is_taken_and_read_whole() -> None:
    """Once they had none. Only as a whole does the chain vouch for it."""
    chain = building()
    item = replace(chain.object(part(110, 111)), journal=True, envelope=ENVELOPE, bytes=ENVELOPE.stored_size(200))
    chain.append(EntryKind.COMMIT, **objects(chain, item))
    assert not chain.state.objects[item.key].separable
    hashed = replace(item, parts=(replace(item.parts[0], sha256="0" * 64),))
    assert hashed.separable
    assert object_problem(hashed) is None


def test_of_a_generation_that_is_gone_an_outline_is_left() -> None:
    """Whose it was and when what happened; nothing whose size depends on partitions, objects or commits."""
    chain = complete()
    seq = chain.state.seq + 1
    chain.append(EntryKind.SNAPSHOT, snapshot=seq, folded=dump_state(chain.state))
    state = chain.append(EntryKind.CONFIRM, snapshot=seq).state
    chain.append(EntryKind.SEALED, snapshot=seq)
    everything = Clearing(goes=tuple(sorted(state.positions)), stays={})
    for kind in (EntryKind.CLEARING, EntryKind.CLEARED):
        chain.append(kind, clearing=everything, snapshot=seq)
    outline = state.outline()
    assert outline.gone
    assert not outline.taints
    assert outline.cleared == Clearing(goes=(), stays={})
    assert None not in (outline.opening, outline.completed_seq, outline.clearing_by)
    same = (
        "number",
        "instance",
        "seq",
        "head_sha256",
        "at",
        "holder",
        "complete",
        "opening",
        "snapshot",
        "completed_at",
        "completed_seq",
        "sealed_at",
        "clearing_by",
        "sealed",
    )
    assert [getattr(outline, name) for name in same] == [getattr(state, name) for name in same]
    empty = (outline.positions, outline.objects, outline.moments, outline.topics, outline.going, outline.positions_seq)
    assert not any(empty)


class Watched(dict[Any, Any]):
    """A dict of a state that another thread looks at whenever it has changed."""

    def __init__(self, content: dict[Any, Any], look: Callable[[], None]) -> None:
        super().__init__(content)
        self._look = look

    def __setitem__(self, name: Any, value: Any) -> None:
        super().__setitem__(name, value)
        self._look()

    def __delitem__(self, name: Any) -> None:
        super().__delitem__(name)
        self._look()

    def pop(self, name: Any) -> Any:  # type: ignore[override]  # as the fold may call it
        value = super().pop(name)
        self._look()
        return value

    def update(self, content: Any) -> None:  # type: ignore[override]  # likewise
        """Take all of `content`."""
        super().update(content)
        self._look()


def test_who_looks_meanwhile_never_misses_the_object_of_a_range_that_is_read() -> None:
    """An object of an offer is deleted where the base is past it and nothing names it: `OfferLane` runs beside."""
    chain = building()
    looks: list[bool] = []

    def look() -> None:
        state = chain.state
        known = state.objects.keys() | state.replaced.keys()
        position_ = state.positions[K]
        past = any(low <= 0 for low, _ in position_.base.done)
        looks.append(first in known and (second in known or not past))

    first = next(iter(chain.state.objects))
    second = FIRST.replace("/1.avro", "/0.avro")
    for name in ("positions", "objects", "replaced"):
        setattr(chain.state, name, Watched(getattr(chain.state, name), look))
    item = replace(chain.object(part(0, 49, scan=2)), key=second)
    chain.append(EntryKind.COMMIT, objects=(item,), **based(chain, done=((0, 100),), open=()))
    chain.append(EntryKind.COMMIT, **based(chain, done=((0, 100),), open=(), done_at=30))
    merged = chain.object(part(0, 99, scan=2), name="merged")
    chain.append(EntryKind.REWRITE, objects=(merged,), replaced=(first, second))
    assert len(looks) >= 6
    assert all(looks)
