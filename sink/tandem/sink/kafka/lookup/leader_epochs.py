"""Which leader epoch a place in a log belongs to, found with a few questions about the ends of epochs; pure (KIP-320).

A leader begins its epoch at the end that the log has then, whether or not it ever writes. So "the leader's epoch" of an
idle log changes with every restart of a broker and says nothing about what was read. The epoch of the record before an
offset never changes as long as that record is in the log: with it a position names one history, whenever it was asked
for. Brokers keep the starts of epochs through compaction (`LeaderEpochFileCache` in Kafka), so no record need be left.

`OffsetForLeaderEpoch(e)` answers with the largest known epoch that is not above e and the start of the next known one;
where none is known below, with e itself and the start of the first known one.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_QUESTIONS = 16


@dataclass(slots=True, kw_only=True)
class EpochDescent:
    """Finds the last epoch that begins below `offset`, or the first known one if none does, from the leader's down.

    Ask for the end of `question` and hand the answer to `answered`, until that returns the epoch. `suspect` is the
    epoch whose start is asked for; `known` is the last one that the broker turned out to know, and begins at `start`.
    """

    offset: int
    leader_epoch: int
    suspect: int = -1
    known: int = -1
    start: int = -1
    questions: int = 0

    def __post_init__(self) -> None:
        """Begin at the top."""
        self.suspect = self.known = self.leader_epoch

    @property
    def trivial(self) -> int | None:
        """The epoch if nothing need be asked: -1 where the cluster tells none, 0 where no record can lie below."""
        if self.leader_epoch <= 0:
            return self.leader_epoch
        return 0 if self.offset == 0 else None

    @property
    def question(self) -> int:
        """The epoch whose end is to be asked for next."""
        return self.suspect - 1

    def answered(self, epoch: int, end: int) -> int | None:
        """Take the answer to `question`; return the epoch that was looked for, None if there is more to ask."""
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
    """Whether a log has what was read up to `offset`, the last of it in epoch `of_epoch`, by a leader's answer.

    `epoch` and `end` are what it says about `of_epoch`. An end below the position: the log was cut there. An epoch
    that the leader does not know: the records of that epoch are not in its log, unless the one before ends exactly at
    the position; then none need have been there, because a leader that wrote nothing leaves no trace.
    """
    return end >= offset and (epoch == of_epoch or end == offset)
