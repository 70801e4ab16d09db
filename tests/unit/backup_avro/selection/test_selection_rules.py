"""What a restore reads: the best generation, records of others above it, moments, taints; nothing twice, no gap."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.backups.chains import OPENING, Chain, complete_generation, done_base, grown, key, part, position, topic

from tandem.backup_avro.chain.entries import Base, Clearing, EntryKind, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection.losses import vanished_reason
from tandem.backup_avro.selection.restorable_state import (
    PartitionSelection,
    Selection,
    Slice,
    bounded,
    choose_generation,
    restorable,
    select,
)

K, U = key(), key("u")


def offsets(found: PartitionSelection) -> list[int]:
    """The offsets that the slices stand for; every part of these tests holds each offset of its range."""
    return [
        offset
        for piece in found.slices
        for offset in range(max(piece.low, piece.part.first), min(piece.high, piece.part.last + 1))
    ]


def only(selection: Selection) -> PartitionSelection:
    (found,) = selection.partitions
    return found


def of_k(selection: Selection) -> PartitionSelection:
    """The partition K, beside others."""
    return next(found for found in selection.partitions if found.key == K)


def states(*chains: Chain) -> list[Generation]:
    """What a reader has."""
    return [chain.state for chain in chains]


def late(chain: Chain) -> Chain:
    """The chain, claimed when all others had been read through: topics that it does not know were gone by then."""
    chain.state.claim = replace(chain.state.claim, at=1000)
    return chain


def of_policy(chain: Chain, policy: str = "compact,delete") -> Chain:
    """The chain, whose topic has this `cleanup.policy`."""
    chain.state.topics["t"] = replace(chain.state.topics["t"], config={"cleanup.policy": policy})
    return chain


def scanned(number: int, start: int, end: int, offset: int, *, epoch: int = 1) -> Chain:
    """A COMPLETE generation whose base was [start, end), read by one attempt, and whose tail stands at `offset`.

    The base was done before the tail read anything.
    """
    chain = Chain(number=number, instance="b", incarnation="b-1").open()
    base = done_base(end, start=start)
    scan = [part(start, end - 1, scan=1)] if end > start else []
    chain.commit({K: position(end, base=base, log_start=start, epoch=epoch)}, *scan)
    if offset > end:
        tail = part(end, offset - 1, start=150)
        chain.commit({K: position(offset, base=base, log_start=start, epoch=epoch)}, tail)
    return chain.complete()


def test_the_newest_untainted_one_is_best() -> None:
    """Tainted ones come last; what is let go or not COMPLETE not at all."""
    chains = [complete_generation(number, {K: 5}) for number in (1, 2, 3, 4)]
    chains[3].taint(2)
    chains[2].seal().clearing()
    chains.append(Chain(number=5).open())
    assert [state.number for state in restorable(states(*chains))] == [2, 1, 4]
    assert choose_generation(states(*chains)).number == 2
    assert choose_generation(states(*chains), 4).number == 4


def test_what_can_not_be_chosen_is_refused() -> None:
    """With the number that was asked for, and where to look."""
    why = "complete and free of clearing (`tandem status` shows what there is and what is still missing)"
    with pytest.raises(RefusedError) as nothing:
        choose_generation([])
    assert str(nothing.value) == f"no generation is {why}"
    with pytest.raises(RefusedError) as unfinished:
        choose_generation(states(complete_generation(1, {K: 5}), Chain(number=3).open()), 3)
    assert str(unfinished.value) == f"generation 3 is not {why}"


def test_a_restore_rests_on_the_generation_that_is_asked_for() -> None:
    """However much better another one is: that adds what it holds above, and nothing at all without `merge`."""
    old, new = complete_generation(1, {K: 10}).append(EntryKind.CONFIRM, head_at=30), complete_generation(2, {K: 20})
    found = select(states(old, new), number=1)
    assert (found.generation, found.seq) == (1, old.state.seq)
    assert (only(found).end, only(found).generations) == (20, (1, 2))
    alone = select(states(old, new), number=1, merge=False)
    assert (alone.generation, only(alone).end, only(alone).generations) == (1, 10, (1,))
    best = select(states(old, new))
    assert (best.generation, best.seq) == (2, new.state.seq)


def test_one_generation_as_it_is() -> None:
    """All of its live parts, in offset order, whole."""
    found = only(select(states(scanned(1, 0, 10, 15))))
    assert offsets(found) == list(range(15))
    assert (found.end, found.records, found.generations, found.warning) == (15, 15, (1,), None)
    assert all(piece.whole for piece in found.slices)


def test_void_attempts_are_not_read() -> None:
    """Nor what was read before the base started again."""
    chain = Chain().open()
    base = Base(start=0, end=10, leader=1, attempts=1, open=((0, 10, 1),))
    chain.commit({K: position(10, base=base)}, part(0, 4, scan=1))
    done = replace(base, attempts=2, void=(1,), open=(), done=((0, 10),), done_at=30)
    chain.commit({K: position(10, base=done, head_at=40)}, part(0, 9, scan=2))
    found = only(select(states(chain.complete())))
    assert [piece.part.scan for piece in found.slices] == [2]
    assert offsets(found) == list(range(10))


def test_what_lies_below_the_log_start_is_dropped() -> None:
    """DeleteRecords left no tombstones: the recorded log start says what is gone."""
    chain = complete_generation(1, {K: 10})
    chain.commit({K: replace(chain.state.positions[K], log_start=4)})
    found = only(select(states(chain)))
    assert offsets(found) == list(range(4, 10))
    assert not found.slices[0].whole


def test_a_moment_cuts_every_partition() -> None:
    """Offsets at and above the moment's are not read; a partition's own end is the most there is."""
    found = only(select(states(scanned(1, 0, 10, 15)), until={K: 12}))
    assert (offsets(found), found.end) == (list(range(12)), 12)
    assert only(select(states(scanned(1, 0, 10, 15)), until={K: 99})).end == 15
    found = only(select(states(scanned(1, 0, 10, 15)), until={K: 10}))
    assert [piece.part.first for piece in found.slices] == [0], "nothing is read of the part that begins there"


def test_records_above_come_from_another_generation() -> None:
    """The former Active still reads: what it has above the new one's position belongs to the newest state."""
    former, newer = complete_generation(1, {K: 20}), scanned(2, 0, 10, 15)
    found = only(select(states(former, newer)))
    assert offsets(found) == list(range(20))
    assert (found.generations, found.end) == ((2, 1), 20)
    assert [piece.generation for piece in found.slices] == [2, 2, 1]
    assert only(select(states(former, newer), merge=False)).end == 15
    assert only(select(states(former, newer), until={K: 17})).end == 17
    assert only(select(states(former, newer), until={K: 15})).generations == (2,)


def test_a_moment_that_several_hold_is_taken_from_the_best() -> None:
    """Once it is reached, nobody else is asked for more."""
    chains = complete_generation(1, {K: 20}), complete_generation(2, {K: 19}), scanned(3, 0, 10, 15)
    found = only(select(states(*chains), until={K: 17}))
    assert (found.end, found.generations) == (17, (3, 2))
    assert offsets(found) == list(range(17))


def test_what_another_one_scanned_may_end_where_the_chosen_one_stands() -> None:
    """From there on it read the tail: nothing is missing in between."""
    found = only(select(states(scanned(1, 0, 10, 20), complete_generation(2, {K: 10}))))
    assert (found.end, found.generations) == (20, (2, 1))
    assert [piece.generation for piece in found.slices] == [2, 1]
    assert offsets(found) == list(range(20))


def test_another_copy_is_taken_instead_where_it_was_read_to_the_end_of_its_base() -> None:
    """It need not have read any tail yet."""
    found = only(select(states(scanned(1, 0, 30, 30), complete_generation(2, {K: 10}))))
    assert (found.end, found.generations) == (30, (1,))
    assert [piece.generation for piece in found.slices] == [1]
    assert offsets(found) == list(range(30))


def test_every_other_one_is_asked_again_when_one_has_added_something() -> None:
    """The newest scanned beyond the chosen one; from where the older one's tail ends, its own tail goes on."""
    chains = complete_generation(1, {K: 10}), complete_generation(2, {K: 20}), scanned(3, 0, 20, 40)
    found = only(select(states(*chains), number=1))
    assert (found.end, found.generations) == (40, (1, 2, 3))
    assert [piece.generation for piece in found.slices] == [1, 2, 3]
    assert offsets(found) == list(range(40))


def test_offsets_without_records_are_reached_too() -> None:
    """Markers of transactions, or a log that was compacted away: positions go on, nothing is stored."""
    empty = Chain(number=1).open().commit({K: position(20)}).complete()
    found = only(select(states(empty, complete_generation(2, {K: 15}, instance="b"))))
    assert (found.end, found.generations) == (20, (2, 1))
    assert offsets(found) == list(range(15))
    found = only(select(states(empty.taint(18))))
    assert (found.slices, found.sound, found.end, found.warning) == ((), 18, 20, "tainted above offset 18: a gap")


def test_what_another_one_has_not_read_through_is_not_added() -> None:
    """Its position stands at the end of the log from the start on, but what lies below is not read yet."""
    reading = complete_generation(1, {K: 10})
    reading.commit({U: position(9, base=Base(start=0, end=9, leader=1))})
    found = select(states(reading, complete_generation(2, {K: 10, U: 5}, instance="b")))
    assert {item.key: (item.end, item.generations) for item in found.partitions} == {K: (10, (2,)), U: (5, (2,))}


def test_only_contiguous_records_are_added() -> None:
    """Not from another epoch history, nor, without a warning, beyond a taint."""
    newer = scanned(3, 0, 10, 15)
    other_epoch = complete_generation(1, {K: 20}, epoch=0)
    assert only(select(states(other_epoch, newer))).end == 15
    tainted = complete_generation(1, {K: 20}).taint(18)
    assert only(select(states(tainted, newer))).sound == 18


def test_a_log_that_starts_above_a_position_is_taken_as_it_is() -> None:
    """The failed one stands at 15, then records up to 22 were deleted: no copy goes on from 15, the newest is whole."""
    failed, newer = of_policy(scanned(1, 0, 10, 15)), of_policy(scanned(2, 22, 30, 40).taint(40))
    found = only(select(states(failed, newer)))
    assert (found.log_start, found.end, found.generations, found.warning) == (22, 40, (2,), None)
    assert offsets(found) == list(range(22, 40))
    assert only(select(states(failed, newer), number=1)).end == 15, "what was asked for, and nothing else"


def test_what_a_truncation_left_is_added_below_a_taint() -> None:
    """The tail of generation 2 was away from 13 on and read another history later; generation 1 saw what had been cut.

    Both read epoch 1 up to 13. Generation 1 was frozen at 20 by a cut at 16: up to there it is beyond doubt.
    """
    older = complete_generation(1, {K: 20}, epoch=1).taint(20, cut_at=16, epoch=1)
    newer = complete_generation(2, {K: 13}, epoch=1).taint(13, epoch=1)
    newer.commit({K: position(30, epoch=2)}, part(13, 29, start=300))
    found = only(select(states(older, newer)))
    assert (found.sound, found.end, found.generations) == (16, 30, (2, 1))
    assert offsets(found) == list(range(30))
    somewhere = complete_generation(1, {K: 20}, epoch=1).taint(20, cut_at=-1, epoch=1)
    assert only(select(states(somewhere, newer))).sound == 13, "nobody knows what was cut"
    elsewhere = complete_generation(2, {K: 13}, epoch=2).taint(13, epoch=2)
    assert only(select(states(older, elsewhere))).sound == 13, "it may have read another history"


def test_a_moment_inside_of_what_another_one_scanned_is_not_filled_up() -> None:
    """A scan meets a compacted log: its base is right as of its end, not as of a moment before that."""
    chosen, other = complete_generation(2, {K: 10}), scanned(1, 0, 30, 40)
    assert only(select(states(other, chosen))).end == 40
    assert only(select(states(other, chosen), until={K: 20})).end == 10
    assert only(select(states(other, chosen), until={K: 29})).end == 10
    assert only(select(states(other, chosen), until={K: 30})).generations == (1,)


def test_a_tainted_generation_is_read_with_a_warning() -> None:
    """It is all that there is; before its taint nothing is to be warned of. What another has without doubt wins."""
    tainted = late(complete_generation(2, {K: 20}).taint(15))
    found = only(select(states(tainted)))
    assert found.end == 20
    assert found.warning == "tainted above offset 15: a gap"
    assert [(piece.generation, piece.low, piece.high) for piece in found.slices] == [(2, 0, 15), (2, 15, 20)]
    assert only(select(states(tainted), until={K: 15})).warning is None
    also = complete_generation(1, {K: 30, U: 1}).taint(1, of=U)
    assert {item.key: item.end for item in select(states(tainted, also)).partitions} == {K: 30}
    less = complete_generation(1, {K: 17, U: 1}).taint(1, of=U)
    found = only(select(states(tainted, less)))
    assert (found.end, found.warning, found.generations) == (20, "tainted above offset 17: a gap", (2, 1))
    assert offsets(found) == list(range(20))


def test_a_cut_log_is_not_mixed() -> None:
    """A partition that was frozen because the log was cut keeps its own history; the log's present one is preferred."""
    frozen = late(complete_generation(2, {K: 20}).taint(20, cut_at=12))
    longer = complete_generation(1, {K: 30, U: 1}, epoch=2).taint(0, of=U)
    assert only(select(states(longer, frozen))).generations == (1,)
    assert only(select(states(frozen))).end == 20
    assert only(select(states(longer, frozen), number=2)).generations == (2,)


def test_a_scan_that_was_cut_inside_is_taken_as_a_whole_or_not_at_all() -> None:
    """Its base lacks what records superseded that are cut off by now: it is right as of its end only."""
    behind = complete_generation(1, {K: 12}, epoch=2)
    cut = scanned(2, 0, 20, 22, epoch=2).taint(22, cut_at=18)
    found = only(select(states(behind, cut)))
    assert (found.end, found.generations, found.warning) == (22, (2,), None)
    assert only(select(states(behind, cut), number=1)).end == 12
    assert only(select(states(behind, cut), until={K: 15})).end == 12
    at_its_end = scanned(2, 0, 20, 20, epoch=2).taint(20, cut_at=18)
    found = only(select(states(behind, at_its_end)))
    assert (found.end, found.generations, found.warning) == (20, (2,), None)
    gap = scanned(2, 0, 20, 22, epoch=2).taint(19, cut_at=18)
    assert only(select(states(behind, gap))).end == 12, "nor is it right there if it missed something"


def swept(chain: Chain, horizon: int) -> Chain:
    """The chain, after a sweep has left only the newest record of each key below `horizon`."""
    chain.state.horizons[K] = horizon
    return chain


def test_what_was_swept_goes_onto_another_copy_no_more_than_what_was_scanned() -> None:
    """A sweep drops tombstones. What they deleted may be in a copy that was scanned after a cut, without them."""
    behind = complete_generation(2, {K: 15}, instance="b")
    found = only(select(states(swept(complete_generation(1, {K: 20}), 18), behind)))
    assert (found.end, found.generations) == (20, (1,)), "its own copy is taken instead"
    assert only(select(states(swept(complete_generation(1, {K: 20}), 18), behind), number=2)).end == 15
    found = only(select(states(swept(complete_generation(1, {K: 20}), 15), behind)))
    assert (found.end, found.generations) == (20, (2, 1)), "above the horizon nothing is missing"
    assert only(select(states(swept(complete_generation(1, {K: 20}), 18), behind), until={K: 17})).end == 15
    doubtful = swept(grown(complete_generation(1, {K: 12}).taint(12), K, 20), 18)
    found = only(select(states(doubtful, behind)))
    assert (found.end, found.generations) == (15, (2,))
    assert found.warning is not None
    assert "`--generation 1` restores its own copy" in found.warning


def test_a_scan_in_doubt_goes_onto_no_other_copy() -> None:
    """A key that was deleted before it was scanned is in the other copy, and its tombstone in neither."""
    doubtful = scanned(2, 0, 100, 130).taint(0)
    other = complete_generation(1, {K: 50, U: 1}).taint(1, of=U)
    found = of_k(select(states(other, doubtful)))
    assert (found.sound, found.end) == (50, 50)
    assert offsets(found) == list(range(50))
    assert found.warning is not None
    assert "what it has from 50 on is left out" in found.warning
    assert "`--generation 2` restores its own copy" in found.warning
    own = of_k(select(states(other, doubtful), number=2))
    assert (own.sound, own.end, own.generations) == (0, 130, (2,))
    assert own.warning == "tainted above offset 0: a gap"
    assert offsets(own) == list(range(130))
    up_to_it = complete_generation(1, {K: 100, U: 1}).taint(1, of=U)
    found = of_k(select(states(up_to_it, doubtful)))
    assert (found.sound, found.end) == (100, 130), "what its tail read follows the log's own order"
    assert found.warning == "tainted above offset 100: a gap"


def test_a_copy_that_was_cut_inside_of_what_was_swept_is_taken_as_a_whole() -> None:
    """What the lost records superseded was swept away: only the log before the cut is left."""
    behind = complete_generation(1, {K: 8})
    cut = swept(scanned(2, 0, 10, 21).taint(21, cut_at=15), 20)
    found = only(select(states(behind, cut)))
    assert (found.sound, found.end, found.generations, found.warning) == (21, 21, (2,), None)
    assert only(select(states(behind, cut), number=1)).end == 8
    below = swept(scanned(2, 0, 10, 21).taint(21, cut_at=15), 12)
    assert only(select(states(behind, below))).end == 15, "it tells the state as of the cut"


def test_a_sound_part_of_a_tainted_generation_beats_an_older_one() -> None:
    """An Active was away, a failed one before it stands far behind: up to the taint the newer one is right.

    What it has above the taint comes with a warning, just as if the older one were not there.
    """
    old = complete_generation(1, {K: 10})
    newer = scanned(2, 0, 30, 50).taint(40)
    alone = only(select(states(newer)))
    found = only(select(states(old, newer)))
    assert (found.sound, found.end, found.generations) == (40, 50, (2,))
    assert (alone.sound, alone.end, alone.warning) == (40, 50, found.warning)
    assert found.warning is not None
    moment = only(select(states(old, newer), until={K: 45}))
    assert (moment.sound, moment.end, moment.warning) == (40, 45, found.warning)


def test_what_a_tainted_active_confirmed_beyond_its_successor_comes_last_with_a_warning() -> None:
    """It reads on until it is sealed; the owner of the one that replaces it may die before it has read as far.

    By number neither is better: one that was tainted after an older one became sound is read on just the same.
    """
    for number in (1, 3):
        tainted = grown(grown(complete_generation(number, {K: 80}).taint(80), K, 100), K, 500)
        found = only(select(states(tainted, complete_generation(2, {K: 100}, instance="b"))))
        assert (found.sound, found.end, found.generations) == (100, 500, (2, number))
        assert found.warning == f"from offset 100 on only generation {number} has it, which is tainted: a gap"
        assert offsets(found) == list(range(500))


def test_of_several_in_doubt_the_one_that_read_furthest_is_read() -> None:
    """Those that read less add nothing, a moment in between bounds them, and what the chosen one doubts comes first."""
    little = grown(complete_generation(1, {K: 80}).taint(80), K, 120)
    much = grown(complete_generation(2, {K: 80}).taint(80), K, 200)
    chosen = complete_generation(3, {K: 100}, instance="b")
    found = only(select(states(little, much, chosen)))
    assert (found.sound, found.end, found.generations) == (100, 200, (3, 2))
    until = only(select(states(little, much, chosen), until={K: 110}))
    assert (until.sound, until.end, offsets(until)) == (100, 110, list(range(110)))
    assert only(select(states(little, much, chosen), until={K: 100})).warning is None
    chosen.taint(90)
    assert choose_generation(states(little, much, chosen)).number == 3
    found = only(select(states(little, much, chosen)))
    assert (found.sound, found.end, found.generations) == (90, 200, (3, 2))
    assert found.warning == (
        "tainted above offset 90: a gap; from offset 100 on only generation 2 has it, which is tainted: a gap"
    )
    assert offsets(found) == list(range(200))


def test_what_may_not_go_on_from_there_is_named_and_left_out() -> None:
    """Read on in a later epoch, or only scanned: another history, or tombstones that are gone. Nothing is mixed."""
    chosen = complete_generation(2, {K: 100}, instance="b")
    later = grown(complete_generation(1, {K: 80}).taint(80, epoch=1), K, 150, epoch=2)
    found = only(select(states(later, chosen)))
    assert (found.sound, found.end, found.generations) == (100, 100, (2,))
    assert found.warning == (
        "generation 1, tainted (a gap), read up to offset 150; what it has from 100 on is left out, "
        "as it may not go on from there: `--generation 1` restores its own copy"
    )
    assert only(select(states(later, chosen), number=1)).end == 150
    scanning = scanned(3, 0, 130, 140).taint(0)
    found = only(select(states(scanning, chosen)))
    assert (found.end, found.generations) == (100, (2,))
    assert found.warning is not None
    assert "read up to offset 140" in found.warning


def test_what_goes_on_is_taken_before_others_are_measured_against_it() -> None:
    """So only what they have beyond that is named; and one that adds nothing hides none that comes after it."""
    chosen = complete_generation(4, {K: 100}, instance="b")
    goes_on = grown(complete_generation(1, {K: 80}).taint(80), K, 120)
    less = grown(complete_generation(2, {K: 80}).taint(80), K, 90)
    elsewhere = grown(complete_generation(3, {K: 80}).taint(80, epoch=1), K, 150, epoch=2)
    found = only(select(states(goes_on, less, elsewhere, chosen)))
    assert (found.sound, found.end, found.generations) == (100, 120, (4, 1))
    assert found.warning == (
        "from offset 100 on only generation 1 has it, which is tainted: a gap; "
        "generation 3, tainted (a gap), read up to offset 150; what it has from 120 on is left out, "
        "as it may not go on from there: `--generation 3` restores its own copy"
    )


def test_what_is_of_a_history_that_was_left_is_no_doubt() -> None:
    """Neither an epoch that ended, nor what was cut off, nor what is being cleared is named."""
    chosen = complete_generation(4, {K: 100}, epoch=3)
    former = grown(complete_generation(1, {K: 80}, epoch=2).taint(80), K, 150, epoch=2)
    cut = complete_generation(2, {K: 140}, epoch=3).taint(140, cut_at=90)
    cleared = grown(complete_generation(3, {K: 80, U: 1}, epoch=3).taint(80), K, 150, epoch=3).seal().clearing([U])
    found = only(select(states(former, cut, cleared, chosen), wanted=lambda item: item.name == "t"))
    assert (found.sound, found.end, found.warning) == (100, 100, None)


def test_the_sound_part_of_what_read_on_in_another_epoch_is_of_the_epoch_before() -> None:
    """Two that were away read on in epoch 2; below their taints both read epoch 1, as did the one that was sealed.

    So what the one has up to 32, of which it scanned all, and the other up to 35 go together.
    """
    sealed = complete_generation(1, {K: 31}, epoch=1)
    further = scanned(2, 0, 31, 35).taint(35, epoch=1)
    newest = scanned(3, 0, 32, 32).taint(32, epoch=1)
    newest.commit({K: position(47, base=done_base(32), epoch=2)}, part(32, 46, start=300))
    found = only(select(states(sealed, further, newest)))
    assert (found.sound, found.end, found.generations) == (35, 47, (3, 2))
    assert offsets(found) == list(range(47))
    assert found.warning == "tainted above offset 35: a gap"


def test_what_is_sound_is_added_to_the_epoch_in_which_it_was_read() -> None:
    """Its generation was away, and read on in the next epoch; below the taint it read what the chosen one did."""
    chosen = complete_generation(2, {K: 31}, epoch=1)
    away = complete_generation(1, {K: 35}, epoch=1).taint(35, epoch=1)
    away.commit({K: position(40, epoch=2)}, part(35, 39, start=300))
    found = only(select(states(away, chosen), number=2))
    assert (found.sound, found.end, found.generations) == (35, 35, (2, 1))
    assert offsets(found) == list(range(35))


def test_what_was_read_in_an_epoch_before_is_not_added_to_a_later_one() -> None:
    """It may have been cut off since; that its generation read on in the later epoch says nothing of it."""
    chosen = complete_generation(2, {K: 31}, epoch=2)
    away = complete_generation(1, {K: 35}, epoch=1).taint(35, epoch=1)
    away.commit({K: position(40, epoch=2)}, part(35, 39, start=300))
    found = only(select(states(away, chosen)))
    assert (found.sound, found.end, found.generations) == (31, 31, (2,))


def test_two_histories_are_not_mixed() -> None:
    """Generation 2 read to 150 in epoch 4; its log was cut at 130, and 1, which stood below that, read on in epoch 5.

    Nothing in the chains tells where the cut was. So what 1 read on is not added to 2: all of it is taken, as it is.
    """
    older = complete_generation(1, {K: 120}, epoch=4)
    older.commit({K: position(200, epoch=5)}, part(120, 199, start=300))
    newer = scanned(2, 0, 120, 150, epoch=4)
    found = only(select(states(older, newer)))
    assert (found.end, found.sound, found.generations, found.warning) == (200, 200, (1,), None)
    assert offsets(found) == list(range(200))
    assert only(select(states(older, newer), number=2)).generations == (2,)
    assert only(select(states(older, newer), number=2)).end == 150


def test_what_was_deleted_by_offset_is_left_out_whoever_has_it() -> None:
    """DeleteRecords moved the log start to 12 after generation 1 had read: generation 2 knows, in its tail."""
    old = of_policy(complete_generation(1, {K: 10}))
    newer = of_policy(scanned(2, 0, 5, 20).taint(18))
    newer.commit({K: replace(newer.state.positions[K], log_start=12)})
    found = only(select(states(old, newer)))
    assert (found.log_start, found.end) == (12, 20)
    assert offsets(found) == list(range(12, 20))


def test_what_lies_beyond_a_cut_is_no_doubtful_tail() -> None:
    """The newer generation adds what the log kept; what was cut off is of a history that the log has left."""
    older = complete_generation(1, {K: 20})
    newer = grown(complete_generation(2, {K: 30}), K, 40).taint(35, cut_at=25)
    found = only(select(states(older, newer)))
    assert (found.sound, found.end, found.generations, found.warning) == (25, 25, (1, 2), None)


def test_what_is_in_doubt_below_a_cut_is_added() -> None:
    """It had a gap, then its log was cut above that: what lies between, nobody else has, and the log kept it."""
    older = complete_generation(1, {K: 20})
    newer = grown(complete_generation(2, {K: 30}), K, 40).taint(18).taint(40, cut_at=25)
    found = only(select(states(older, newer)))
    assert (found.sound, found.end, found.generations) == (20, 25, (1, 2))
    assert found.warning == "from offset 20 on only generation 2 has it, which is tainted: a gap"
    assert offsets(found) == list(range(25))
    assert only(select(states(older, newer), until={K: 22})).end == 22
    scan = scanned(2, 0, 30, 40).taint(18).taint(40, cut_at=25)
    assert "read up to offset 25" in (only(select(states(older, scan))).warning or "")


@pytest.mark.parametrize(
    ("epoch", "offset", "head_at", "cut_at", "rests_on"),
    [
        (1, 35, 30, None, 3),
        (1, 33, 30, None, 3),
        (4, 35, 30, None, 1),
        (-1, 35, 30, None, 1),
        (1, 32, 30, None, 1),
        (1, 35, 20, None, 1),
        (1, 35, 30, 20, 1),
    ],
    ids=["lower epoch", "as far", "same epoch", "no epoch", "less far", "not later", "cut off itself"],
)
def test_epochs_that_went_back_show_a_former_history(
    epoch: int, offset: int, head_at: int, cut_at: int | None, rests_on: int
) -> None:
    """Epochs never fall along a log: volumes were set back before the later one read it, which has a gap elsewhere."""
    older = complete_generation(1, {K: 33, U: 5}, epoch=4, head_at=20)
    newer = complete_generation(3, {K: offset, U: 5}, epoch=epoch, head_at=head_at).taint(5, U)
    if cut_at is not None:
        newer = newer.taint(offset, cut_at=cut_at, epoch=epoch)
    found = of_k(select(states(older, newer)))
    assert found.generations[0] == rests_on
    if rests_on == 3:
        assert found.sound == offset


def test_an_older_generation_that_reads_on_shows_a_former_history_too() -> None:
    """Volumes were set back while it was still drained, and the owner of the newest one was away (seed 2244)."""
    draining = complete_generation(1, {K: 35}, epoch=1, head_at=30)
    newest = complete_generation(3, {K: 33}, epoch=4, head_at=20)
    found = only(select(states(draining, newest)))
    assert (found.generations, found.sound) == ((1,), 35)


def test_where_all_were_cut_off_the_latest_history_is_restored() -> None:
    """The log was cut twice while one of them was away: that one has less, of a history that was left earlier."""
    read_on = complete_generation(1, {K: 25}, epoch=5).taint(25, cut_at=20)
    left = complete_generation(2, {K: 15}, epoch=2).taint(7).taint(15, cut_at=9)
    found = only(select(states(read_on, left)))
    assert (found.generations, found.sound, found.warning) == ((1,), 25, None)
    assert only(select(states(read_on, left), number=2)).sound == 7
    further = complete_generation(3, {K: 24}, epoch=5).taint(24, cut_at=20)
    assert only(select(states(read_on, left, further))).generations == (1,)


def test_what_was_cut_off_does_not_go_on_in_what_was_cut_off_elsewhere() -> None:
    """Both histories were left; that in doubt of the one was never beside what is sound of the other."""
    sound = complete_generation(1, {K: 24}).taint(24, cut_at=20)
    doubtful = complete_generation(2, {K: 28}).taint(7).taint(28, cut_at=26)
    found = only(select(states(sound, doubtful)))
    assert (found.generations, found.end, found.warning) == ((1,), 24, None)


def test_each_partition_rests_on_a_copy_of_which_nothing_was_cut_off() -> None:
    """Of either generation something was cut off, so neither has them all."""
    first = complete_generation(1, {K: 20, U: 20}, epoch=3).taint(20, U, cut_at=10)
    second = complete_generation(2, {K: 20, U: 20}, epoch=3).taint(20, K, cut_at=10)
    found = select(states(first, second)).partitions
    assert {piece.key: piece.generations for piece in found} == {K: (1,), U: (2,)}


def test_what_was_cut_off_is_better_than_what_is_in_doubt_from_its_beginning() -> None:
    """The owner of what follows was away while its base was to be read: of that nobody knows a state (seed 63481)."""
    cut = complete_generation(2, {K: 43}, epoch=3).taint(43, cut_at=42)
    doubtful = scanned(1, 0, 45, 58, epoch=8).taint(0, epoch=8)
    found = only(select(states(doubtful, cut)))
    assert (found.sound, found.end, found.generations) == (43, 43, (2,))
    assert found.warning == (
        "generation 1, tainted (a gap), read up to offset 58; what it has from 43 on is left out, "
        "as it may not go on from there: `--generation 1` restores its own copy"
    )
    assert only(select(states(doubtful, cut), number=1)).end == 58
    later = complete_generation(3, {K: 60}, epoch=9)
    assert only(select(states(doubtful, cut, later))).generations == (3,)
    inside = scanned(2, 0, 43, 43, epoch=3).taint(20, cut_at=42)
    assert only(select(states(doubtful, inside))).generations == (1,)


def test_a_copy_of_the_log_before_volumes_were_put_back_is_not_joined_with_the_log_after() -> None:
    """Offsets and epochs are the same in both histories; a generation between the two found the cut (seed 24)."""
    former = complete_generation(1, {K: 37, U: 5}, epoch=3)
    witness = complete_generation(2, {K: 38, U: 5}, epoch=3).taint(38, K, cut_at=29, epoch=3)
    present = grown(complete_generation(3, {K: 32, U: 5}, epoch=3), K, 46, epoch=3).taint(2, U)
    found = select(states(former, witness, present))
    assert found.generation == 1
    assert (of_k(found).generations, of_k(found).end) == ((3,), 46)
    unseen = select(states(former, present))
    assert of_k(unseen).generations == (1, 3)
    above = complete_generation(2, {K: 40, U: 5}, epoch=3).taint(40, K, cut_at=38, epoch=3)
    assert of_k(select(states(former, above, present))).generations == (1, 3)
    nowhere = complete_generation(2, {K: 38, U: 5}, epoch=3).taint(38, K, cut_at=-1, epoch=3)
    assert of_k(select(states(former, nowhere, present))).generations == (1, 3)
    another_epoch = complete_generation(2, {K: 38, U: 5}, epoch=2).taint(38, K, cut_at=29, epoch=2)
    assert of_k(select(states(former, another_epoch, present))).generations == (1, 3)


def test_what_a_log_has_lost_at_its_end_follows_until_something_is_written() -> None:
    """A copy that was sealed before the cut takes no mark; the log's next record is of a later epoch."""
    former = complete_generation(1, {K: 46}, epoch=1).seal()
    witness = complete_generation(2, {K: 46}, epoch=1).taint(46, cut_at=43, epoch=1)
    present = complete_generation(3, {K: 43}, epoch=1, head_at=90)
    found = only(select(states(former, witness, present)))
    assert (found.generations, found.end, found.warning) == ((3, 1), 46, None)
    written = grown(present, K, 44, epoch=2)
    assert only(select(states(former, witness, written))).generations == (3,)


def test_what_was_cut_off_is_restored_as_its_own_generation_has_it() -> None:
    """Another one that read the same history may have read further of it: that is no part of what is asked for."""
    asked = complete_generation(1, {K: 15}).taint(15, cut_at=12)
    further = complete_generation(2, {K: 18}, instance="b")
    assert only(select(states(asked, further), number=1)).generations == (1,)
    assert only(select(states(asked, further))).generations == (2,)


def test_a_slice_says_whose_it_is() -> None:
    """Its generation's OPEN says how its objects are to be read."""
    chains = complete_generation(1, {K: 20}), complete_generation(2, {K: 10}, instance="b")
    older, newer = states(*chains)
    older.opening = replace(OPENING, isolation_level="read_uncommitted")
    found = only(select([older, newer], number=2))
    assert [(piece.generation, piece.opening) for piece in found.slices] == [(2, OPENING), (1, older.opening)]


def test_a_slice_of_which_nothing_is_left_is_none() -> None:
    """Its object goes on beyond the slice, and all of the slice lies below the log start."""
    tainted = of_policy(complete_generation(2, {K: 20}, instance="b").taint(10))
    knows = of_policy(grown(complete_generation(1, {K: 10}), K, 20, log_start=10))
    found = only(select(states(knows, tainted), number=2))
    assert (found.log_start, found.generations) == (10, (2, 1))
    assert [(piece.generation, piece.low, piece.high) for piece in found.slices] == [(1, 10, 20)]


def test_a_tail_in_doubt_may_begin_where_its_base_ended() -> None:
    """Nothing of the scan is put on the other copy."""
    chosen = complete_generation(2, {K: 100}, instance="b")
    scan = scanned(1, 0, 100, 130).taint(100)
    found = only(select(states(scan, chosen)))
    assert (found.sound, found.end, found.generations) == (100, 130, (2, 1))


def test_one_record_may_have_expired() -> None:
    """The lowest there is."""
    chain = complete_generation(1, {K: 20})
    chain.state.missing = {K: 1}
    assert only(select(states(chain))).expired == 1


def test_a_bound_takes_what_lies_below_it() -> None:
    """Not what begins at it, and no generation is asked that has only that."""
    older, newer = complete_generation(1, {K: 20}), grown(complete_generation(2, {K: 5}, instance="b"), K, 10)
    selection = select(states(older, newer), number=2)
    swept(older, 15)
    found = only(bounded(selection, states(older, newer), {("t", 0): 10}))
    assert [(piece.generation, piece.part.first, piece.low, piece.high) for piece in found.slices] == [
        (2, 0, 0, 10),
        (2, 5, 0, 10),
    ]
    found = only(bounded(selection, states(older, newer), {("t", 0): 5}))
    assert [(piece.part.first, piece.high) for piece in found.slices] == [(0, 5)]
    with pytest.raises(RefusedError, match="below 15"):
        bounded(selection, states(older, newer), {("t", 0): 11})


def test_a_bound_may_be_doubtful_for_two_reasons() -> None:
    """Both are said."""
    chain = scanned(1, 0, 10, 20).taint(5)
    found = only(bounded(select(states(chain)), states(chain), {("t", 0): 8}))
    assert found.warning == (
        "tainted above offset 5: a gap; "
        "below offset 10 there is only what compaction had left by then: not a state of the past"
    )


def test_objects_below_the_log_start_are_not_read() -> None:
    """Nor are those that end where it is."""
    chain = grown(grown(complete_generation(1, {K: 10}), K, 20), K, 30, log_start=20)
    found = only(select(states(chain)))
    assert [(piece.part.first, piece.part.last) for piece in found.slices] == [(20, 29)]
    chain.commit({K: replace(chain.state.positions[K], log_start=30)})
    assert only(select(states(chain))).slices == ()


def test_a_log_start_that_any_generation_of_this_history_knows_counts() -> None:
    """Also one that adds no record; not one of a history that the log has left, nor for a moment before it moved."""
    knows = of_policy(complete_generation(1, {K: 20}))
    knows.commit({K: replace(knows.state.positions[K], log_start=12)})
    newer = of_policy(complete_generation(2, {K: 20}))
    found = only(select(states(knows, newer)))
    assert (found.generations, found.log_start, offsets(found)[0]) == ((2,), 12, 12)
    assert only(select(states(knows, newer), until={K: 20})).log_start == 0
    other = complete_generation(2, {K: 20}, epoch=2)
    assert only(select(states(knows, other))).log_start == 0


def test_a_log_start_that_a_tainted_generation_knows_counts() -> None:
    """It belongs to the history of its sound part, whatever came after."""
    sound = of_policy(complete_generation(1, {K: 20}))
    tainted = of_policy(grown(complete_generation(2, {K: 20}).taint(20, epoch=1), K, 40, log_start=15, epoch=2))
    found = only(select(states(sound, tainted)))
    assert (found.sound, found.generations, found.log_start) == (20, (1,), 15)


def test_a_partition_that_came_later_is_found_where_it_is() -> None:
    """The best generation lacks a topic that was added after it, and one that it knows as gone is not brought back."""
    old = complete_generation(1, {K: 10})
    newer = complete_generation(2, {K: 12, U: 5}).taint(11)
    assert {p.key: p.generations for p in select(states(old, newer)).partitions} == {K: (1, 2), U: (2,)}
    assert {p.key for p in select(states(old, newer), number=1).partitions} == {K}
    gone = late(complete_generation(3, {U: 7}))
    assert [p.key for p in select(states(old, newer, gone)).partitions] == [U]
    assert {p.key for p in select(states(old, newer, gone), removed=True).partitions} == {K, U}


def test_the_last_backup_of_a_deleted_topic_can_be_selected() -> None:
    """On request, and unless a topic of that name exists again; also from a generation that is cleared otherwise."""
    chain = complete_generation(1, {K: 10})
    chain.append(EntryKind.COMMIT, topics=(topic(removed=True),))
    assert select([chain.state]).partitions == ()
    (found,) = select([chain.state], removed=True).partitions
    assert found.end == 10
    chain.append(EntryKind.COMMIT, topics=(topic(topic_id="again"),))
    assert only(select([chain.state], removed=True)).key == K, "nobody has read the new one through yet"
    again = key("again")
    chain.commit({again: position(3)}, part(0, 2, of=again))
    assert only(select([chain.state], removed=True)).key == again
    kept = complete_generation(1, {K: 10}).seal().clearing(stays=[K]).cleared().state
    newer = complete_generation(2, {K: 20}).state
    assert [state.number for state in restorable([kept, newer])] == [2, 1]
    assert select([kept, newer], number=1).partitions[0].end == 20, "what the newer one holds above is added"


def test_a_topic_that_came_while_another_generation_became_complete_is_not_left_out() -> None:
    """The former Active, which reads on, has it first. What it had read by the claim, or sealed since, was gone."""
    former, newest = complete_generation(1, {K: 10, U: 3}), complete_generation(2, {K: 10}, instance="b")
    assert {item.key: item.end for item in select(states(former, newest)).partitions} == {K: 10, U: 3}
    assert [item.key for item in select(states(former, late(newest))).partitions] == [K]
    newest = complete_generation(2, {K: 10}, instance="b")
    assert [item.key for item in select(states(former.seal(), newest)).partitions] == [K]


def test_a_partition_that_only_an_older_one_knows_counts_for_its_topic() -> None:
    """The newest one's owner died before it saw that the topic had grown; the topic has to be made as large as that."""
    grew = complete_generation(1, {K: 10}).commit({}, topics=(topic(partitions=8),))
    more = key(partition=11)
    grew.commit({more: position(3)}, part(0, 2, of=more), topics=(topic(partitions=12),))
    found = select(states(grew, complete_generation(2, {K: 12, U: 5}, instance="b")))
    assert {item.key: item.generations for item in found.partitions} == {K: (2,), more: (1,), U: (2,)}
    assert {item.key: item.topic.partitions for item in found.partitions} == {K: 12, more: 12, U: 8}


@pytest.mark.parametrize(("done_at", "found"), [(49, [K]), (50, [K, U]), (51, [K, U])])
def test_what_was_read_through_before_the_claim_was_gone_by_then(done_at: int, found: list[PartitionKey]) -> None:
    """Its own base counts, not that of another topic. What came at the claim or later is not gone."""
    former = complete_generation(1, {K: 10})
    former.commit({U: position(3, base=done_base(at=done_at), head_at=60)}, part(0, 2, of=U))
    newest = complete_generation(2, {K: 10}, instance="b")
    newest.state.claim = replace(newest.state.claim, at=50)
    assert [item.key for item in select(states(former, newest)).partitions] == found


def test_only_what_the_chosen_one_began_is_named_as_incomplete() -> None:
    """A partition that nobody has read through is left out; it is a gap of the backup only where that knows of it."""
    reading, chosen = complete_generation(1, {K: 10}).taint(9), complete_generation(2, {K: 10}, instance="b")
    reading.commit({U: position(0, base=Base(start=0, end=9, leader=1))})
    found = select(states(reading, chosen))
    assert (found.generation, [item.key for item in found.partitions], found.incomplete) == (2, [K], ())
    assert select(states(reading)).incomplete == ("u-0",)


def test_a_life_that_nobody_read_through_takes_no_name() -> None:
    """The last life of a deleted topic came and went unread: what can be brought back is the life before it."""
    old = complete_generation(1, {K: 10})
    old.append(EntryKind.COMMIT, topics=(topic(removed=True),))
    newest = complete_generation(2, {U: 5}, instance="b")
    unread = key("again")
    newest.commit(
        {unread: position(0, base=Base(start=0, end=9, leader=1))}, topics=(topic(topic_id="again", removed=True),)
    )
    found = select(states(old, newest), removed=True)
    assert {item.key: item.end for item in found.partitions} == {K: 10, U: 5}
    newest.commit({unread: position(9, base=done_base(9))}, part(0, 8, of=unread, scan=1))
    found = select(states(old, newest), removed=True)
    assert {item.key: item.end for item in found.partitions} == {unread: 9, U: 5}, "read through, it has the name"


@pytest.mark.parametrize("topic_id", ["again", "younger"])
def test_of_two_lives_of_a_name_the_one_is_read_that_nobody_saw_the_end_of(topic_id: str) -> None:
    """A topic was created again while the newest generation, which knows the old life, became COMPLETE."""
    former, newest = complete_generation(1, {K: 10}), complete_generation(2, {K: 10}, instance="b")
    again = key(topic_id)
    former.commit(
        {again: position(5)}, part(0, 4, of=again), topics=(topic(removed=True), topic("t", topic_id=topic_id))
    )
    assert {item.key: item.end for item in select(states(former, newest)).partitions} == {again: 5}
    assert {item.key: item.end for item in select(states(former, newest), removed=True).partitions} == {again: 5}
    unseen = complete_generation(1, {U: 10})
    unseen.append(EntryKind.COMMIT, topics=(replace(topic("u"), name="t"),))
    assert [item.key for item in select(states(unseen, newest)).partitions] == [K]


def test_a_new_life_that_nobody_read_through_does_not_hide_the_last_one() -> None:
    """The former Active saw the topic end and come again, but has not read it: the backup of the old life is all."""
    former, newest = complete_generation(1, {K: 10}), complete_generation(2, {K: 10}, instance="b")
    former.commit(
        {key("again"): position(0, base=Base(start=0, end=9, leader=1))},
        topics=(topic(removed=True), topic(topic_id="again")),
    )
    assert [item.key for item in select(states(former, newest)).partitions] == [K]


def test_partitions_are_chosen_named_or_left_out() -> None:
    """By topic; a removed topic is not in the newest state; one whose base is not done is named as incomplete."""
    chain = complete_generation(1, {K: 5, U: 5})
    chain.commit({key("late"): position(0, base=Base(start=0, end=9, leader=1))})
    found = select(states(chain), wanted=lambda item: item.name != "u")
    assert [item.key for item in found.partitions] == [K]
    assert found.incomplete == ("late-0",)
    chain.append(EntryKind.COMMIT, topics=(topic(removed=True),))
    assert [item.key for item in select(states(chain)).partitions] == [U]


CUTS = st.lists(st.integers(1, 12), min_size=1, max_size=5)


def built(number: int, log: tuple[int, int], chunks: Iterable[int], tail: Iterable[int], redo: int) -> Chain:
    """A COMPLETE generation: base [log_start, end) in chunks from high to low, `redo` of them twice, then the tail."""
    log_start, end = log
    chain = Chain(number=number, instance="ab"[number % 2]).open()
    base = Base(start=log_start, end=end, leader=1)
    chain.commit({K: position(end, base=base, log_start=log_start)})
    low, attempt, again = end, 0, redo
    sizes = list(chunks)
    while low > log_start:
        size = sizes[attempt % len(sizes)]
        attempt += 1
        first = max(log_start, low - size)
        base = replace(base, attempts=attempt)
        if again:
            base, again = replace(base, void=(*base.void, attempt)), again - 1
        else:
            base = replace(base, done=((first, end),))
        chain.commit({K: position(end, base=base, log_start=log_start)}, part(first, low - 1, scan=attempt))
        low = base.done[0][0] if base.done else end
    offset = end
    base = replace(base, done_at=10)
    chain.commit({K: position(end, base=base, log_start=log_start)})
    for size in tail:
        chain.commit({K: position(offset + size, base=base, log_start=log_start)}, part(offset, offset + size - 1))
        offset += size
    return chain.complete()


GENERATIONS = st.lists(
    st.tuples(st.tuples(st.integers(0, 6), st.integers(6, 30)), CUTS, CUTS, st.integers(0, 2)), min_size=1, max_size=4
)


@given(GENERATIONS, st.none() | st.integers(0, 60), st.integers(0, 4))
def test_slices_never_overlap_and_cover_exactly(
    recipes: list[tuple[tuple[int, int], list[int], list[int], int]], until: int | None, taint: int
) -> None:
    """Every offset from the log start to the end once, whatever the generations' chunks and tails."""
    chains = [built(number, *recipe) for number, recipe in enumerate(recipes, 1)]
    if taint < len(chains):
        state = chains[taint].state
        chains[taint].taint(state.positions[K].base.end)
    found = only(select(states(*chains), until=None if until is None else {K: until}))
    assert offsets(found) == list(range(found.log_start, max(found.end, found.log_start)))
    assert until is None or found.end <= until
    pieces: list[Slice] = list(found.slices)
    assert all(piece.item.key for piece in pieces)


def test_growth_is_seen() -> None:
    """A selection is of its moment: what is committed later is in the next one."""
    chain = complete_generation(1, {K: 5})
    before = select(states(chain))
    grown(chain, K, 8)
    after = select(states(chain))
    assert (only(before).end, only(after).end) == (5, 8)
    assert after.seq == before.seq + 1


def test_what_is_kept_below_a_log_start_is_restored_until_it_is_released() -> None:
    """Of a topic that only compacts, in what is left of the copy as well; where a policy deletes, it is left out."""
    older = complete_generation(1, {K: 10, U: 5}).seal().clearing(stays=[K]).cleared()
    newer = complete_generation(2, {K: 10}, log_start=4)
    assert offsets(only(select(states(older, newer), number=1, merge=False))) == list(range(10))
    assert offsets(only(select(states(older, newer)))) == list(range(10))
    older.clearing().cleared()
    assert offsets(only(select(states(older, newer)))) == list(range(4, 10))
    deletes = of_policy(complete_generation(1, {K: 10}).seal()), of_policy(newer)
    assert offsets(only(select(states(*deletes)))) == list(range(4, 10))


def test_what_is_lost_below_a_log_start_is_restored() -> None:
    """Nothing moves the log start of a topic that only compacts: the older copy, and what the newer tail read on."""
    older = grown(complete_generation(1, {K: 10}), K, 15)
    newer = scanned(2, 4, 12, 20)
    found = only(select(states(older, newer)))
    assert (found.generations, found.log_start, found.end, found.warning) == ((1, 2), 0, 20, None)
    assert offsets(found) == list(range(20))
    assert offsets(only(select(states(older, newer), number=1))) == list(range(20))
    assert offsets(only(select(states(older, newer), number=2))) == list(range(4, 20))
    both = of_policy(older, "compact,delete"), of_policy(newer, "compact,delete")
    found = only(select(states(*both)))
    assert (found.generations, found.log_start) == ((2,), 4)
    for changed in (of_policy(newer, "compact,delete"), of_policy(newer, "delete")):
        found = only(select(states(older, changed)))
        assert (found.generations, found.log_start) == ((2,), 4), "the topic has a policy that deletes since"


def test_what_is_kept_for_its_lost_keys_is_restored_from_its_start() -> None:
    """While a policy deleted for a while, the copy learned the log start below which the keys were lost."""
    older = scanned(1, 2, 10, 15)
    older.commit({K: replace(older.state.positions[K], log_start=8, offset=16)})
    newer = scanned(2, 8, 16, 20)
    assert offsets(only(select(states(older, newer), number=1, merge=False))) == list(range(8, 15))
    older.seal().append(EntryKind.CLEARING, clearing=Clearing(goes=(), stays={K: vanished_reason(3, 2, [2, 3, 4])}))
    found = only(select(states(older, newer), number=1, merge=False))
    assert (found.log_start, offsets(found)) == (2, list(range(2, 15)))
    assert offsets(only(select(states(older, newer)))) == list(range(8, 20)), "the newest copy is restored unasked"
    older.state.compacted_from.clear()
    found = only(select([older.state, newer.state], number=1, merge=False))
    assert (found.log_start, offsets(found)) == (8, list(range(8, 15))), "what a policy always deleted has expired"


def test_what_can_not_go_on_from_a_lost_log_start_is_named() -> None:
    """The newer copy scanned beyond the end of the older one, or read in a later epoch: tombstones may be missing."""
    for newer in (scanned(2, 4, 30, 35), scanned(2, 4, 12, 35, epoch=2)):
        found = only(select(states(complete_generation(1, {K: 20}), newer)))
        assert (found.generations, found.log_start, found.end) == ((2,), 4, 35)
        assert found.warning == (
            "the log start moved to 4 though the policy is compact alone; generation 1 holds records below it that may "
            "have been deleted since: `--generation 1 --no-merge` restores its own copy"
        )
    nothing_there = scanned(1, 4, 10, 20)
    nothing_there.commit({K: replace(nothing_there.state.positions[K], log_start=0)})
    assert only(select(states(nothing_there, scanned(2, 4, 30, 35)))).warning is None
    cut = complete_generation(1, {K: 40}).taint(38, cut_at=36)
    assert only(select(states(cut, scanned(2, 4, 30, 36)))).warning is None
