"""What others wrote since: committed records, and those that may still be committed, but no aborted ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tandem.spark_jobs.restore.live_write.watched_log import LogSince
from tandem.spark_jobs.restore.progress.batch_producer import ProduceError

Entry = tuple[str, str]
"""A record's key, and what became of its transaction: committed, aborted or open."""


@dataclass
class Log:
    """One reader of a log, as a `LiveLog` reads: committed records up to the first open one, or all."""

    entries: list[Entry]
    committed: bool
    at: int = 0
    end: int | None = None
    read: list[int] = field(default_factory=list)

    def head(self) -> int:
        """The end that the isolation level has."""
        ends = [at for at, (_, status) in enumerate(self.entries) if status == "open" and self.committed]
        return min(ends, default=len(self.entries))

    def jump_to(self, offset: int) -> None:
        """Read on from here."""
        self.at = offset

    def below(self, until: int) -> Iterator[tuple[str, int]]:
        """The records below an offset; they stand for segments here."""
        reach = min(until, self.head())
        self.end = reach if reach < until else None
        while self.at < reach:
            key, status = self.entries[self.at]
            self.read.append(self.at)
            self.at += 1
            if status == "committed" or not self.committed:
                yield key, self.at - 1


def keys_in(segments: Iterable[Any]) -> Iterable[tuple[str, int]]:
    """All of them."""
    return cast("Iterable[tuple[str, int]]", segments)


def watched(entries: list[Entry]) -> tuple[LogSince[str], Log, Log]:
    """Both readers at the log's first offset."""
    stable, open_end = Log(entries, committed=True), Log(entries, committed=False)
    return LogSince(stable=cast("Any", stable), open_end=cast("Any", open_end), keys_in=keys_in), stable, open_end


def test_aborted_records_are_no_writes_once_that_is_known() -> None:
    """Else a key that a killed run had sent would never be written."""
    log, _, open_end = watched([("a", "aborted"), ("b", "committed"), ("c", "open"), ("d", "aborted")])
    assert log.written_since(()) == {"b", "c", "d"}
    assert open_end.read == [2, 3]


def test_what_was_open_is_asked_again() -> None:
    """It may have been aborted or committed since."""
    entries: list[Entry] = [("a", "open"), ("b", "open")]
    log, stable, _ = watched(entries)
    assert log.written_since(()) == {"a", "b"}
    entries[:] = [("a", "aborted"), ("b", "committed")]
    assert log.written_since(()) == {"b"}
    assert log.written_since(()) == {"b"}
    assert stable.read == [0, 1]


def test_own_records_are_told_apart() -> None:
    """Those that are committed count as written by us, those that are open as nobody's."""
    log, _, _ = watched([("a", "committed"), ("b", "committed"), ("c", "open"), ("d", "open")])
    assert log.written_since([(0, 0), (2, 2)]) == {"b", "d"}
    assert log.committed_at([(0, 0), (2, 2)]) == {"a"}


def test_only_what_lies_below_is_read() -> None:
    """What others write behind our records is newer, and stands."""
    log, _, _ = watched([("a", "open"), ("b", "open"), ("c", "open")])
    assert log.written_since([(1, 1)], until=2) == {"a"}


def test_a_log_that_lost_confirmed_records_is_no_basis() -> None:
    """An unclean election has cut it off."""
    log, _, _ = watched([("a", "open")])
    with pytest.raises(ProduceError, match="TDM-R151"):
        log.written_since([(1, 1)], until=2)
