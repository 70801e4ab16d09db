"""From which offset on a generation has states of a log: where its tail stood when its base was done."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.backups.chains import Chain, complete_generation, done_base, key, part, position

from tandem.backup_avro.chain.entries import Base, EntryKind, Taint
from tandem.backup_avro.chain.snapshot import dump_state
from tandem.backup_avro.errors import DamagedError, TandemError
from tandem.backup_avro.selection.restorable_state import bounded, select

K, U = key(), key("u")
_HALF = Base(start=0, end=30, leader=1, attempts=1, open=((0, 30, 1),))
_DONE = done_base(30, at=25)


def _slow(number: int = 1, *, epoch: int = 1, through: int = 60) -> Chain:
    """Added to a generation that is COMPLETE: the tail came to `through` while its base, up to 30, was read."""
    chain = Chain(number=number).open()
    chain.commit({U: position(1)}).complete()
    chain.commit({K: position(40, base=_HALF, epoch=epoch)}, part(30, 39))
    chain.commit(
        {K: position(through, base=_DONE, epoch=epoch, head_at=26)}, part(0, 29, scan=1), part(40, through - 1)
    )
    chain.commit({K: position(80, base=_DONE, epoch=epoch, head_at=30)}, part(through, 79))
    return chain


def test_it_is_where_the_tail_stood_when_the_base_was_done() -> None:
    """Later positions change nothing of it."""
    state = _slow().state
    assert (state.told_from(K), state.state_from(K), state.state_from(U)) == (30, 60, 0)
    assert state.through == {K: 60, U: 0}


def test_before_that_it_is_not_known() -> None:
    """The base's end is all that there is to say, and nobody chooses it."""
    chain = Chain().open()
    chain.commit({K: position(40, base=_HALF)}, part(30, 39))
    assert (chain.state.through, chain.state.state_from(K), chain.state.usable(K)) == ({}, 30, False)


def test_one_number_may_say_it_of_many() -> None:
    """That all are at head, which names no partition."""
    chain = Chain().open()
    waiting = position(40, base=_DONE, head_at=25)
    chain.commit({K: waiting, U: replace(waiting, offset=50)}, part(0, 29, scan=1), part(30, 39))
    assert chain.state.through == {}
    chain.append(EntryKind.CONFIRM, head_at=26)
    assert chain.state.through == {K: 40, U: 50}


def test_where_nothing_was_scanned_every_offset_is_a_state() -> None:
    """An empty base, as of a topic that was new."""
    chain = Chain().open()
    chain.commit({K: position(40, base=done_base(10, start=10), log_start=10)}, part(10, 39))
    assert chain.state.state_from(K) == 10
    new = Chain().open()
    new.commit({K: position(40, base=done_base(0, at=25), head_at=25)}, part(0, 39))
    assert (new.state.through, new.state.state_from(K)) == ({}, 0)


@pytest.mark.parametrize(("sound", "told"), [(40, 40), (0, 90)])
def test_a_taint_knows_better(sound: int, told: int) -> None:
    """At head with nothing read is not written down at once: who taints calls sound what was, and that is a state."""
    chain = Chain().open()
    chain.commit({K: position(40, base=_DONE, head_at=25)}, part(0, 29, scan=1), part(30, 39))
    taint = Taint(key=K, offset=sound, reason="a gap", epoch=1)
    chain.commit({K: position(90, base=_DONE, head_at=31)}, part(40, 89), taints=(taint,))
    assert chain.state.state_from(K) == told


def test_who_begins_with_a_snapshot_knows_it() -> None:
    """It is part of the state."""
    chain = _slow()
    entry = chain.snapshot()
    chain.put(entry)
    assert chain.begun(entry) == chain.state
    assert chain.state.state_from(K) == 60


def test_a_snapshot_of_the_first_releases() -> None:
    """They did not keep it: from there on all readers take the base's end for it."""
    chain = _slow()
    old = {name: value for name, value in dump_state(chain.state).items() if name != "through"}
    entry = chain.snapshot(folded=old)
    chain.put(entry)
    late = chain.begun(entry)
    assert late == chain.state
    assert late.through == {K: 30, U: 0}


@pytest.mark.parametrize("wrong", [{"t": {"0": 81}}, {"v": {"0": 1}}])
def test_a_snapshot_that_no_chain_adds_up_to(wrong: object) -> None:
    """Read through further than it was read, or what is not there."""
    chain = _slow()
    entry = chain.entry(
        EntryKind.SNAPSHOT, snapshot=chain.state.seq + 1, folded=dump_state(chain.state) | {"through": wrong}
    )
    with pytest.raises(DamagedError, match="where it does not stand yet"):
        chain.begun(entry)


def test_a_copy_is_not_changed() -> None:
    """What is read through later is no part of a copy made before."""
    chain = Chain().open()
    chain.commit({U: position(1)})
    copy = chain.state.frozen_copy()
    chain.commit({K: position(1)})
    assert copy.through == {U: 0}


def _bounded(chains: list[Chain], offset: int) -> str | None:
    states = [chain.state for chain in chains]
    found = bounded(select(states), states, {("t", 0): offset})
    (piece,) = (piece for piece in found.partitions if piece.key == K)
    return piece.warning


def test_each_partition_has_a_bound_of_its_own() -> None:
    """Whichever of them comes first; what has none stays as it is."""
    states = [_slow().state]
    found = bounded(select(states), states, {("u", 0): 0})
    assert {piece.key: (piece.end, piece.sound) for piece in found.partitions} == {K: (80, 80), U: (0, 0)}
    found = bounded(select(states), states, {("t", 0): 70})
    assert {piece.key: (piece.end, piece.sound) for piece in found.partitions} == {K: (70, 70), U: (1, 1)}


@pytest.mark.parametrize(
    ("until", "words"),
    [
        ({("t", 0): 81}, "t-0 reaches up to offset 80, not to 81 (leave the bound out for all there is)"),
        (
            {("t", 0): 70, ("u", 1): 0, ("elsewhere", 2): 5},
            "--until names elsewhere:2, u:1, which is not restored (see --dry-run for what is)",
        ),
    ],
)
def test_a_bound_of_what_is_not_there_is_refused(until: dict[tuple[str, int], int], words: str) -> None:
    """Beyond the end, or of no partition that is selected: it is named, with what to do."""
    states = [_slow().state]
    with pytest.raises(TandemError) as caught:
        bounded(select(states), states, until)
    assert str(caught.value) == words


def test_a_bound_below_it_is_no_state_of_the_past() -> None:
    """What was superseded between the base's end and there may have been compacted before the base got to it."""
    assert _bounded([_slow()], 60) is None
    assert "below offset 60 there is only what compaction had left" in (_bounded([_slow()], 59) or "")


def test_a_bound_is_judged_by_whoever_has_the_beginning() -> None:
    """What another one adds was read by its tail, though it scanned further."""
    beginning = complete_generation(2, {K: 35, U: 1})
    assert _bounded([beginning, _slow(1)], 45) is None


def test_a_bound_above_a_taint_and_below_it_tells_both() -> None:
    """The reason is not lost."""
    chain = _slow()
    chain.taint(0)
    assert (_bounded([chain], 50) or "").count("offset") == 2


def test_what_a_cut_left_is_no_state_if_it_ends_below_it() -> None:
    """The log was cut inside of what the tail read while the base was: only all that was read makes sense."""
    chosen = complete_generation(3, {K: 10, U: 1}, epoch=1).state
    for through, end in ((60, 80), (51, 80), (50, 50), (45, 50)):
        cut = _slow(2, epoch=2, through=through)
        cut.taint(80, K, cut_at=50, epoch=2)
        (piece,) = (piece for piece in select([chosen, cut.state]).partitions if piece.key == K)
        assert (piece.generations, piece.sound, piece.end) == ((2,), end, end), through


def test_below_it_no_other_one_is_added_to_what_is_tainted() -> None:
    """With --generation its own copy is taken alone: it is no state that another one's records would lead up to."""
    other = complete_generation(2, {K: 90, U: 1})
    for sound, generations in ((59, (1,)), (60, (1, 2))):
        chain = _slow()
        chain.taint(sound, K, epoch=1)
        found = select([chain.state, other.state], number=1)
        (piece,) = (piece for piece in found.partitions if piece.key == K)
        assert piece.generations == generations, sound
