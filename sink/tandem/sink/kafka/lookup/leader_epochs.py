"""Finds the leader epoch of the record before an offset, with a few OffsetForLeaderEpoch requests (KIP-320).

A leader begins its epoch at the current end of the log, whether or not it ever writes. So the leader's epoch of an idle
log changes with every restart of a broker and says nothing about the records that were read. The epoch of the record
before an offset never changes as long as that record is in the log: a position with this epoch identifies one history
of the log, whenever it was looked up. Brokers keep the starts of epochs through compaction (`LeaderEpochFileCache` in
Kafka), so the record itself need not exist any more.

`OffsetForLeaderEpoch(e)` answers with the largest known epoch that is not above e and the start of the next known one;
if no epoch up to e is known, with e itself and the start of the first known one.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_QUESTIONS = 16


@dataclass(slots=True, kw_only=True)
class EpochDescent:
    """Searches down from the leader's epoch for the last epoch that begins below `offset`, or the first known one.

    The caller requests the end of epoch `question` and passes the answer to `answered`, until that returns the epoch.
    `suspect` is the epoch whose start is being looked up; `known` is the lowest epoch that the broker has confirmed so
    far, and begins at `start`.
    """

    offset: int
    leader_epoch: int
    suspect: int = -1
    known: int = -1
    start: int = -1
    questions: int = 0

    def __post_init__(self) -> None:
        """Begin at the leader's epoch."""
        self.suspect = self.known = self.leader_epoch

    @property
    def trivial(self) -> int | None:
        """The epoch if no request is needed: -1 if the cluster gives none, 0 if no record can lie below `offset`."""
        if self.leader_epoch <= 0:
            return self.leader_epoch
        return 0 if self.offset == 0 else None

    @property
    def question(self) -> int:
        """The epoch whose end has to be requested next."""
        return self.suspect - 1

    def answered(self, epoch: int, end: int) -> int | None:
        """Process the answer to `question`; return the epoch searched for, None if another request is needed."""
        if end < 0 or end == self.start:
            return self.known  # the broker does not know the suspect, nor any epoch below
        self.known, self.start = self.suspect, end
        self.questions += 1
        if end < self.offset or self.questions == _MOST_QUESTIONS:
            return self.known
        if epoch <= 0:
            return 0
        self.suspect = epoch
        return None


def log_holds(epoch: int, end: int, *, of_epoch: int, offset: int) -> bool:
    """Return whether a log still has the history read up to `offset`, whose last record is of epoch `of_epoch`.

    `epoch` and `end` are the leader's answer about `of_epoch` (OffsetForLeaderEpoch). An end below the position: the
    log was truncated there. An epoch that the leader does not know: the records of that epoch are not in its log,
    unless the epoch before ends exactly at the position; then there may have been none, because a leader that wrote
    nothing leaves no trace.
    """
    return end >= offset and (epoch == of_epoch or end == offset)
