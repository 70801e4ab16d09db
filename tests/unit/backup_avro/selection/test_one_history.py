"""Joins of two generations in one partition: only where both are seen to have read one log; never two histories."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.chains import Chain, complete_generation, done_base, grown, key, part, position
from support.pipeline.doubles import MemoryStore
from support.restores.records import restore_record

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.selection import one_history
from tandem.backup_avro.selection.moments import past_state
from tandem.backup_avro.selection.one_history import Records, select_one_history
from tandem.backup_avro.selection.restorable_state import PartitionSelection, Slice, select
from tandem.backup_avro.selection.state_as_of import as_of
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.wanted_state import FoundState, StateRequest
from tandem.spark_jobs.restore.groups import restore_groups
from tandem.spark_jobs.restore.plan.options import ExactPlan, RestoreOptions, plan_again, plan_of
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.progress.restore_record import RestoreRecord
from tandem.spark_jobs.state.find_state import find_state

K = key()
Contents = Callable[[int, int], bytes | None]
"""What a generation has at an offset, None if it has no record there."""


def one_log(_generation: int, offset: int) -> bytes:
    """All have read one log, of which nothing is compacted."""
    return b"%d" % offset


def written_again(*former: int, at: int) -> Contents:
    """The log that was set back to `at` after the `former` generations had read it."""
    return lambda generation, offset: b"%d %d" % (offset, generation in former and offset >= at)


def without(lacks: Mapping[int, Collection[int]], contents: Contents = one_log) -> Contents:
    """The same log, but generations lack these offsets: they were compacted away before they were read."""
    return lambda generation, offset: None if offset in lacks.get(generation, ()) else contents(generation, offset)


def reading(contents: Contents) -> Records:
    """What reads slices of generations with these contents."""

    def read(piece: Slice) -> Iterator[tuple[int, bytes]]:
        for offset in range(min(piece.high, piece.part.last + 1) - 1, max(piece.low, piece.part.first) - 1, -1):
            record = contents(piece.generation, offset)
            if record is not None:
                yield offset, record

    return read


def chosen(contents: Contents, *chains: Chain, number: int | None = None) -> PartitionSelection:
    """What is restored of the one partition."""
    selection = select_one_history(
        [chain.state for chain in chains],
        lambda states: select(states, number=number),
        reading(contents),
        number=number,
    )
    (found,) = selection.partitions
    return found


def taken(found: PartitionSelection, contents: Contents) -> list[tuple[int, int]]:
    """Each record that is restored, as offset and generation."""
    read = reading(contents)
    return [(offset, one.generation) for one in found.slices for offset, _ in sorted(read(one))]


def scanned(number: int, end: int, offset: int, *, head_at: int = 20, of: PartitionKey = K) -> Chain:
    """A COMPLETE generation that scanned [0, end) and whose tail stands at `offset`."""
    chain = Chain(number=number, instance="b", incarnation="b-1").open()
    scan = [part(0, end - 1, of=of, scan=1)] if end else []
    chain.commit({of: position(end, base=done_base(end), head_at=head_at)}, *scan)
    if offset > end:
        tail = part(end, offset - 1, of=of, start=150)
        chain.commit({of: position(offset, base=done_base(end), head_at=head_at)}, tail)
    return chain.complete()


def test_what_both_have_goes_on() -> None:
    """The last record below the join is the same one: nothing changes, and nothing is warned of."""
    older, newer = complete_generation(1, {K: 20}), scanned(2, 10, 15)
    found = chosen(one_log, older, newer)
    assert (found.generations, found.end, found.warning) == ((2, 1), 20, None)
    assert found == replace(select([older.state, newer.state]).partitions[0], slices=found.slices)
    assert taken(found, one_log) == [(n, 2) for n in range(15)] + [(n, 1) for n in range(15, 20)]


def test_the_copy_that_was_at_the_end_of_the_log_later_is_restored() -> None:
    """Volumes were set back to 12 after the newest had read up to 15; the older one read on in the present log."""
    present, former = complete_generation(1, {K: 20}, head_at=30), scanned(2, 10, 15)
    contents = written_again(2, at=12)
    found = chosen(contents, present, former)
    assert (found.generations, found.end, found.sound) == ((1,), 20, 20)
    assert taken(found, contents) == [(n, 1) for n in range(20)]
    assert found.warning == (
        "generations 1 and 2 hold different records at offset 14: the volumes of brokers were put back to an older "
        "state, and the log was written again; nothing is taken from generation 2, `--generation 2 --no-merge` "
        "restores its own copy"
    )


def test_nothing_of_a_former_history_is_added_to_the_present_one() -> None:
    """The log is shorter than it was: the older generation has more of it, of the former history."""
    former, present = complete_generation(1, {K: 20}), scanned(2, 10, 15, head_at=30)
    contents = written_again(1, at=12)
    found = chosen(contents, former, present)
    assert (found.generations, found.end) == ((2,), 15)
    assert taken(found, contents) == [(n, 2) for n in range(15)]
    assert "nothing is taken from generation 1" in (found.warning or "")


def test_a_generation_that_is_named_keeps_its_own_copy() -> None:
    """Whatever the log has now: nothing is added to it, and that is said."""
    present, former = complete_generation(1, {K: 20}, head_at=30), scanned(2, 10, 15)
    contents = written_again(2, at=12)
    found = chosen(contents, present, former, number=2)
    assert (found.generations, found.end) == ((2,), 15)
    assert "nothing is taken from generation 1" in (found.warning or "")


def test_the_other_one_goes_on_behind_the_last_record_that_both_have() -> None:
    """What only it has below the join is restored with what follows, and not what only the lower one has there."""
    older, newer = complete_generation(1, {K: 20}), scanned(2, 5, 15)
    contents = without({2: [12, 13], 1: [14]}, written_again(2, at=12))
    found = chosen(contents, older, newer)
    assert (found.generations, found.end, found.warning) == ((2, 1), 20, None)
    there = [n for n in range(12, 20) if n != 14]
    assert taken(found, contents) == [(n, 2) for n in range(12)] + [(n, 1) for n in there]


def test_the_longer_copy_is_taken_whole_where_nothing_is_proven() -> None:
    """None of the records of either is in both: whichever log they read, it is one in each of them."""
    older, newer = complete_generation(1, {K: 20}), scanned(2, 5, 15)
    contents = without({1: range(15), 2: []})
    found = chosen(contents, older, newer)
    assert (found.generations, found.end, found.warning) == ((1,), 20, None)
    named = chosen(contents, older, newer, number=2)
    assert (named.generations, named.end) == ((2,), 15)
    assert named.warning == (
        "what generation 1 has from offset 15 on is left out: it holds no record that shows that it has read the same "
        "log; `--generation 1 --no-merge` restores its own copy"
    )


def test_what_a_log_start_has_taken_away_is_named_where_nothing_is_proven() -> None:
    """Nothing moves the log start of a topic that only compacts: what lies below it is in the older copy alone."""
    older, newer = complete_generation(1, {K: 20}), complete_generation(2, {K: 30}, log_start=4)
    assert chosen(one_log, older, newer).generations == (1, 2)
    found = chosen(without({2: range(20)}), older, newer)
    assert (found.generations, found.log_start) == ((2,), 4)
    assert found.warning == (
        "generation 1 holds records below offset 4, where the log began when generation 2 read it; "
        "`--generation 1 --no-merge` restores its own copy"
    )


def test_what_is_no_state_is_not_taken_whole() -> None:
    """It is in doubt below where its copy begins to be one: the shorter copy stays, and what is left out is named."""
    older, newer = scanned(1, 10, 20), scanned(2, 5, 15)
    older.state.through[K] = 30
    found = chosen(without({1: range(15)}), older, newer)
    assert (found.generations, found.end) == ((2,), 15)
    assert "from offset 15 on is left out" in (found.warning or "")


def test_a_scan_is_not_taken_for_what_followed() -> None:
    """The last record of both lies in what the other scanned, and one of them has another one above it."""
    older, newer = scanned(1, 12, 20), scanned(2, 5, 15)
    lacks = range(10, 15)
    assert chosen(without({1: lacks, 2: lacks}), older, newer).generations == (2, 1)
    assert chosen(without({1: lacks, 2: [10, *range(12, 15)]}), older, newer).generations == (1,)
    assert chosen(without({1: [10, *range(12, 15)], 2: lacks}), older, newer).generations == (1,)
    found = chosen(without({1: lacks, 2: [11, 12, 13]}), older, newer)
    assert found.generations == (1,)
    differs = without({1: lacks, 2: [11, 12, 13]}, written_again(2, at=5))
    assert "at offset 9" in (chosen(differs, older, newer).warning or "")


def test_a_copy_without_records_is_followed_by_what_has_none_either() -> None:
    """Markers alone lie below the join. A scan that has records is another log, or a later state: taken whole."""
    older, newer = scanned(1, 12, 20), scanned(2, 5, 15)
    nothing = range(15)
    found = chosen(without({1: nothing, 2: nothing}), older, newer)
    assert (found.generations, found.end) == ((2, 1), 20)
    contents = without({1: range(12), 2: nothing})
    assert taken(chosen(contents, older, newer), contents) == [(n, 1) for n in range(12, 20)]
    assert chosen(without({1: range(11), 2: nothing}), older, newer).generations == (1,)


def test_nothing_above_a_join_is_compared_with_what_lies_below_the_log_start() -> None:
    """Records that were deleted from the log are not restored, and prove nothing."""
    newer = scanned(2, 10, 15)
    for start, generations in ((14, (1,)), (15, (2, 1))):
        older = complete_generation(1, {K: 20}, log_start=start)
        for chain in (older, newer):
            chain.state.topics["t"] = replace(chain.state.topics["t"], config={"cleanup.policy": "compact,delete"})
        found = chosen(written_again(1, at=0), older, newer)
        assert (found.generations, found.log_start) == (generations, start)


def test_so_many_records_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy is not read as a whole for one record that both have."""
    monkeypatch.setattr(one_history, "_MOST_RECORDS", 4)
    older, newer = complete_generation(1, {K: 20}), scanned(2, 5, 15)
    assert chosen(without({1: [13, 14]}), older, newer).generations == (2, 1)
    assert chosen(without({1: range(11, 15)}), older, newer).generations == (1,)


def test_every_join_is_proven() -> None:
    """What three generations make up; the middle one's copy is what is compared with the third one's."""
    tail = scanned(1, 16, 20), complete_generation(2, {K: 17}), scanned(3, 10, 15)
    found = chosen(one_log, *tail)
    assert (found.generations, found.end) == ((3, 2, 1), 20)
    assert taken(found, one_log) == [(n, 3) for n in range(15)] + [(15, 2), (16, 2)] + [(n, 1) for n in range(17, 20)]
    tail[0].state.positions[K] = replace(tail[0].state.positions[K], head_at=30)
    found = chosen(written_again(2, 3, at=16), *tail)
    assert (found.generations, found.end) == ((1,), 20)
    lacking = chosen(without({1: range(17)}), *tail)
    assert (lacking.generations, lacking.end) == ((1,), 20)


def test_what_is_in_doubt_is_added_unless_it_is_another_history() -> None:
    """It comes with a warning anyway; that it does not go on from there is known only by a record that differs."""
    chosen_one = complete_generation(2, {K: 100}, instance="b")
    doubtful = grown(complete_generation(1, {K: 80}, head_at=30).taint(80), K, 150)
    for contents in (one_log, without({1: range(100)})):
        found = chosen(contents, doubtful, chosen_one)
        assert (found.generations, found.sound, found.end) == ((2, 1), 100, 150)
        assert found.warning == "from offset 100 on only generation 1 has it, which is tainted: a gap"
    found = chosen(written_again(1, at=90), doubtful, chosen_one)
    assert (found.generations, found.end) == ((2,), 100)
    assert "nothing is taken from generation 1" in (found.warning or "")


def test_a_moment_is_of_one_history_too() -> None:
    """What other generations held at a time is joined by the same rule."""
    present, former = complete_generation(1, {K: 20}, head_at=30), scanned(2, 10, 15)
    past = [as_of(one.state, past_state(one.state), one.state) for one in (former, present)]
    found = FoundState(generations=[one.generation for one in past], past=past, asked=100)
    assert found.select(wanted=lambda _: True, removed=False).partitions[0].generations == (2, 1)
    compared = replace(found, records=reading(written_again(2, at=12)))
    (piece,) = compared.select(wanted=lambda _: True, removed=False).partitions
    assert piece.generations == (1,)
    newest = FoundState(generations=[present.state, former.state], records=reading(written_again(2, at=12)))
    (piece,) = newest.select(wanted=lambda _: True, removed=False).partitions
    assert piece.generations == (1,)


def of_generation(number: int) -> RestoreRecord:
    """A restore that rested on it."""
    return restore_record(id="r", plan="p", generation=number, at=1)


def test_what_reads_a_state_compares_what_is_stored() -> None:
    """Objects and journals: the newest state, one of a moment, a plan, and the same plan found again by its entries."""
    store = MemoryStore()
    older = Backup.completed(store, records("t", 0, range(8)))
    newer = Backup.claim(store, topics=[TopicSpec("t")], number=2, instance="b")
    newer.commit(records("t", 0, range(15)), journal=True)
    newer.complete()
    store.clock_ms += 60_000
    older.commit(records("t", 0, range(8, 12)) + records("t", 0, range(12, 20), timestamp=1_800_000_000_000))
    reader, options = ChainReader(store, PAIR), RestoreOptions(naming=TopicNaming(suffix=".r"))
    for state_request in (StateRequest(), StateRequest(at=store.clock_ms)):
        found = find_state(reader, state_request)
        selection = found.select(wanted=lambda _: True, removed=False)
        assert [(one.generations, one.end) for one in selection.partitions] == [((1,), 20)]
        assert [text[:65] for text in found.doubts(selection)] == [
            "t-0: generations 1 and 2 hold different records at offset 14: the"
        ]
    plan = plan_of(reader, options)
    again = plan_again(reader, options, ExactPlan(hash=plan.hash, generation=plan.generation, basis=plan.basis))
    assert again is not None
    assert [one.generations for topic in again.topics for one in topic.partitions] == [(1,)]
    (piece,) = find_state(reader, StateRequest(generation=2)).select(wanted=lambda _: True, removed=False).partitions
    assert (piece.generations, piece.end) == ((2,), 15)
    counting = restore_groups._Counter(reader, of_generation(2))
    assert [one.generations for one in counting._selection().values()] == [(2,)]
    counting = restore_groups._Counter(reader, of_generation(9))
    assert [one.generations for one in counting._selection().values()] == [(1,)]
