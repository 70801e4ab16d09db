"""Marks: where all logs ended about once a second, between two commits."""

from __future__ import annotations

from typing import Any

from support.backups.chains import key
from support.pipeline.partition_progress import head, progress

from tandem.backup_avro.chain.entries import Mark
from tandem.sink.read.progress.marks import MarkRecorder
from tandem.sink.read.progress.partition_progress import PartitionProgress


def busy(partition: int, *, at: int, offset: int, **how: Any) -> PartitionProgress:
    """A partition whose log ended at `offset` at `at` ms; what was committed ends at 10."""
    it = progress(key=key(partition=partition), head_at=0, **how)
    it.record_commit()
    it.advance_to(offset=offset, epoch=1)
    it.at_head(offset=offset, requested=at / 1000, received=at / 1000, at=at)
    return it


def test_a_mark_names_the_ends_that_moved() -> None:
    """Since the last commit, and then since the last mark; nothing moved, no mark."""
    marks = MarkRecorder(flush_interval_s=60.0)
    progress_of = [busy(0, at=5000, offset=15), busy(1, at=5000, offset=10)]
    marks.record_mark(5000, progress_of)
    head(progress_of[0], 6.0)
    head(progress_of[1], 6.0)
    marks.record_mark(6000, progress_of)
    progress_of[1].advance_to(offset=12, epoch=1)
    head(progress_of[1], 7.0)
    marks.record_mark(7000, progress_of)
    head(progress_of[0], 8.0)
    head(progress_of[1], 8.0)
    marks.record_mark(8000, progress_of)
    expected = (Mark(at=5000, offsets={key(): 15}), Mark(at=7000, offsets={key(partition=1): 12}))
    assert marks.cut() == expected
    assert marks.cut() == ()


def test_what_was_committed_is_not_said_again() -> None:
    """A commit names its own positions; what is read on counts from there."""
    marks = MarkRecorder(flush_interval_s=60.0)
    it = busy(0, at=5000, offset=15)
    it.record_commit()
    marks.record_mark(5000, [it])
    assert marks.cut() == ()


def test_a_first_commit_counts_from_where_the_tail_began() -> None:
    """What was never committed is read from the claim on."""
    marks = MarkRecorder(flush_interval_s=60.0)
    it = progress(head_at=5000)
    marks.record_mark(5000, [it])
    assert marks.cut() == ()


def test_a_partition_that_is_behind_allows_no_mark() -> None:
    """Where one log ended is not known: then nobody can say that this was all there was."""
    marks = MarkRecorder(flush_interval_s=60.0)
    progress_of = [busy(0, at=5000, offset=15), busy(1, at=2999, offset=12)]
    marks.record_mark(5000, progress_of)
    assert marks.cut() == ()
    assert not marks.due(5999), "it is looked again a second later"
    assert marks.due(6000)
    marks.record_mark(5000, [progress_of[0], busy(1, at=3000, offset=12)])
    assert len(marks.cut()) == 1, "two seconds ago is a moment ago"
    progress_of[1].frozen = True
    marks.record_mark(5000, progress_of)
    assert marks.cut() == (Mark(at=5000, offsets={key(): 15}),)


def test_the_first_record_of_a_log_moves_its_end() -> None:
    """From 0 to 1, before anything was committed."""
    marks = MarkRecorder(flush_interval_s=60.0)
    it = progress(head_at=0, offset=0, head_offset=0)
    it.advance_to(offset=1, epoch=1)
    it.at_head(offset=1, requested=5.0, received=5.0, at=5000)
    marks.record_mark(5000, [it])
    assert marks.cut() == (Mark(at=5000, offsets={it.key: 1}),)


def test_only_what_is_known_to_be_the_end_counts() -> None:
    """Records beyond the last end that was seen may be half of what was written."""
    marks = MarkRecorder(flush_interval_s=60.0)
    it = busy(0, at=5000, offset=15)
    it.advance_to(offset=18, epoch=1)
    marks.record_mark(5500, [it])
    assert marks.cut() == (Mark(at=5500, offsets={key(): 15}),)


def test_a_thousand_busy_partitions_have_fewer_marks() -> None:
    """No commit carries more than about twenty thousand offsets."""
    marks = MarkRecorder(flush_interval_s=60.0)
    few, many = [busy(0, at=5000, offset=15)], [busy(n, at=5000, offset=15) for n in range(1000)]
    assert marks.due(0)
    marks.record_mark(5000, few)
    assert not marks.due(5999)
    assert marks.due(6000)
    marks.cut()
    marks.record_mark(5000, many)
    assert not marks.due(7999)
    assert marks.due(8000)


def test_a_commit_that_waits_for_long_has_no_more_marks() -> None:
    """An hour without the store: marks become fewer, each still names all that moved since the one before."""
    marks = MarkRecorder(flush_interval_s=60.0)
    progress_of = [busy(n, at=5000, offset=15) for n in range(40)]
    offset = 15
    for second in range(5, 3605):
        offset += 1
        for it in progress_of:
            it.advance_to(offset=offset, epoch=1)
            it.at_head(offset=offset, requested=second, received=second, at=second * 1000)
        if marks.due(second * 1000):
            marks.record_mark(second * 1000, progress_of)
    taken = marks.cut()
    assert 100 < len(taken) <= 500
    assert sum(len(mark.offsets) for mark in taken) <= 20_000
    assert [mark.at for mark in taken] == sorted({mark.at for mark in taken})
    # The end of a log at a mark is what it was then: one more each second.
    assert all(set(mark.offsets.values()) == {mark.at // 1000 + 11} for mark in taken)
    assert marks.due(3605_000), "the pace begins anew"


def test_what_moved_in_a_mark_that_is_left_out_is_in_the_next() -> None:
    """Of an odd number the last one stays alone."""
    marks = MarkRecorder(flush_interval_s=60.0)
    one, other = busy(0, at=5000, offset=15), [busy(n, at=5000, offset=15) for n in range(1, 10_000)]
    marks.record_mark(5000, [one, *other])
    for at in (6000, 7000):
        for it in (one, *other):
            it.advance_to(offset=at, epoch=1)
            it.at_head(offset=at, requested=at / 1000, received=at / 1000, at=at)
        if at == 6000:
            del other[5000:]
        marks.record_mark(at, [one, *other])
    taken = marks.cut()
    assert [(mark.at, len(mark.offsets)) for mark in taken] == [(6000, 10_000), (7000, 5001)]
    assert taken[0].offsets[key()] == 6000
    assert taken[0].offsets[key(partition=9_999)] == 15


def test_each_thinning_doubles_the_time_between_two_marks() -> None:
    """Twenty thousand offsets are not too many yet; beyond them each second mark goes."""
    marks = MarkRecorder(flush_interval_s=1.0)
    at = 5000
    progress_of = [busy(n, at=at, offset=15) for n in range(10_000)]

    def take(least: int) -> None:
        nonlocal at
        assert not marks.due(at + least - 1)
        at += least
        assert marks.due(at)
        for it in progress_of:
            it.advance_to(offset=at, epoch=1)
            it.at_head(offset=at, requested=at / 1000, received=at / 1000, at=at)
        marks.record_mark(at, progress_of)

    marks.record_mark(at, progress_of)
    take(1000)
    take(1000)  # 30,000: the first two become one
    take(1000)  # 30,000: again
    take(2000)
    take(4000)
    assert [(mark.at, len(mark.offsets)) for mark in marks.cut()] == [(10_000, 10_000), (14_000, 10_000)]


def test_two_marks_that_are_too_many_become_one() -> None:
    """Of an even number none stays alone."""
    marks = MarkRecorder(flush_interval_s=1.0)
    progress_of = [busy(n, at=5000, offset=15) for n in range(10_001)]
    marks.record_mark(5000, progress_of)
    for it in progress_of:
        it.advance_to(offset=20, epoch=1)
        head(it, 6.0)
    marks.record_mark(7000, progress_of)
    assert [(mark.at, set(mark.offsets.values())) for mark in marks.cut()] == [(7000, {20})]
    assert marks.due(0), "the wait that was for this commit is over"
    marks.record_mark(8000, [busy(0, at=8000, offset=30)])
    assert (marks.due(8999), marks.due(9000)) == (False, True)
