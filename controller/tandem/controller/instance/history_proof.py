"""Proof that a newer generation has read the same records as an older one, not others at the same offsets.

Offsets and epochs alone can't tell: an unclean election truncates a log, it grows again, and a generation that was
built later has a position above the older one's, without the records that were cut off. The brokers can (KIP-320): a
leader knows the end offset of a position's epoch in its log. If that is not below the position, the log is the one that
was read. Asked for both generations, the newer one last read from its chain, it proves that both have read one log.

Epochs can be used again like offsets, if the volumes of brokers are put back to a snapshot. So records that either
generation has read are compared with the log's records at their offsets, in the same epoch as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tandem.backup_avro.chain.entries import PartitionKey, Taint
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import TandemError, TransientError
from tandem.sink.encryption.record_keys import PLAIN, RecordKeys
from tandem.sink.kafka.cluster.guarded_topics import ClusterView
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.lookup.leader_epochs import log_holds
from tandem.sink.read import log_identity
from tandem.sink.read.reader_context import FetchSource


class NotProvenError(TandemError):
    """The newer generation can't replace the older one now; another one may, or the same one later."""


class HistoryProver:
    """Proves positions with the brokers, over a new connection for each proof. `record_keys` hashes records."""

    def __init__(
        self, cluster: ClusterView, open_source: Callable[[], FetchSource], record_keys: RecordKeys = PLAIN
    ) -> None:
        self._cluster = cluster
        self._record_keys = record_keys
        self._open_source = open_source

    def cut_off(self, older: Generation, newer: Generation, keys: Collection[PartitionKey]) -> tuple[Taint, ...]:
        """Return a taint for each of `keys` whose log was truncated below the position of `older`.

        For the other `keys` it is then proven that `newer` has all records that `older` has read. Raises NotProvenError
        if `newer` has read another log than the present one, or not far enough; TransientError and errors of
        `sink.kafka.errors.cluster_errors` if the brokers can't tell.
        """
        if not keys:
            return ()
        names = {key: TopicPartition(older.topics[key.topic_id].name, key.partition) for key in sorted(keys)}
        of_newer, of_older = self._leader_epoch_ends(names, newer, older)
        found = []
        for key, tp in names.items():
            new, old = newer.positions[key], older.positions[key]
            if not log_holds(*of_newer[tp], of_epoch=new.epoch, offset=new.offset):
                raise NotProvenError(
                    f"the log of {tp.topic}-{tp.partition} was cut below what generation {newer.number} read "
                    f"({new.offset}), so it can't stand for generation {older.number}: waiting for another one",
                    code="TDM-I028",
                )
            epoch, end = of_older[tp]
            kept = log_holds(epoch, end, of_epoch=old.epoch, offset=old.offset)
            if not kept and new.offset >= min(end, old.offset):
                found.append(_taint(older, newer, key, end))
            elif not kept:
                raise NotProvenError(
                    f"generation {newer.number} stands at {new.offset} in {tp.topic}-{tp.partition}, whose log has "
                    f"what generation {older.number} read up to {end}",
                    code="TDM-I029",
                )
            elif new.offset < old.offset:
                raise NotProvenError(
                    f"generation {newer.number} stands at {new.offset} in {tp.topic}-{tp.partition}, below "
                    f"generation {older.number} at {old.offset}, which the log still has",
                    code="TDM-I030",
                )
        return tuple(found)

    def rewritten(self, older: Generation, newer: Generation, keys: Collection[PartitionKey]) -> tuple[Taint, ...]:
        """Return a taint for each of `keys` whose log has other records now than those that `older` read.

        Raises NotProvenError if `newer` has read other records than the log's; otherwise as `cut_off`.
        """
        found = []
        # An older copy without records has none to lose.
        for state, asked in ((newer, keys), (older, set(keys) - older.found_empty(keys))):
            for key, rewritten in self.compare(state, asked).items():
                if state is newer:
                    raise NotProvenError(
                        f"generation {newer.number} can't stand for generation {older.number} in {newer.name_of(key)}: "
                        f"{rewritten.reason}; waiting for another one",
                        code="TDM-I031",
                    )
                found.append(cut_taint(older, key, rewritten.reason, cut_at=rewritten.cut_at))
        return tuple(found)

    def compare(
        self, state: Generation, keys: Collection[PartitionKey]
    ) -> dict[PartitionKey, log_identity.RewrittenRecord]:
        """Return the partitions whose logs have other records now than those that `state` read. Raises as `cut_off`.

        So has a log with any record below the position in which `state` has found none.
        """
        empty = state.found_empty(keys)
        known = sorted(key for key in keys if state.positions[key].hashes or key in empty)
        names = {key: TopicPartition(state.topics[key.topic_id].name, key.partition) for key in known}
        if not names:
            return {}
        wanted = {
            tp: log_identity.ReadPosition.of(key, state.positions[key], empty=key in empty) for key, tp in names.items()
        }
        source = self._open_source()
        try:
            found = log_identity.compare(source, wanted, self._record_keys)
        finally:
            source.close()
        for key, tp in names.items():
            if tp not in found:
                raise TransientError(
                    f"the brokers can't tell what the log of {state.name_of(key)} holds now", code="TDM-I032"
                )
        return {key: rewritten for key, tp in names.items() if (rewritten := found[tp]) is not None}

    def has_read_this(self, state: Generation, keys: Collection[PartitionKey]) -> bool:
        """Return whether the logs still have all records that `state` has read of `keys`. Raises as `cut_off`."""
        return not self.compare(state, keys) and not self._cut_logs(state, keys)

    def still_there(self, state: Generation, keys: Collection[PartitionKey]) -> frozenset[PartitionKey]:
        """Return those of `keys` whose logs still have all records that `state` has read. Raises as `cut_off`."""
        same = frozenset(keys) - self.compare(state, keys).keys()
        return same - self._cut_logs(state, same)

    def _cut_logs(self, state: Generation, keys: Collection[PartitionKey]) -> set[PartitionKey]:
        """Return those of `keys` whose logs end the epoch of the position of `state` below it, or do not have it."""
        asked = sorted(key for key in keys if state.positions[key].epoch >= 0)
        names = {key: TopicPartition(state.topics[key.topic_id].name, key.partition) for key in asked}
        if not names:
            return set()
        (ends,) = self._leader_epoch_ends(names, state)
        at = state.positions
        return {
            key for key, tp in names.items() if not log_holds(*ends[tp], of_epoch=at[key].epoch, offset=at[key].offset)
        }

    def _leader_epoch_ends(
        self, names: Mapping[PartitionKey, TopicPartition], *states: Generation
    ) -> Sequence[Mapping[TopicPartition, tuple[int, int]]]:
        """Return, for each of `states`, the leaders' (epoch, end offset) for the epochs of its positions."""
        source = self._open_source()
        try:
            found = [
                source.epoch_ends({tp: state.positions[key].epoch for key, tp in names.items()}) for state in states
            ]
        finally:
            source.close()
        # Topic ids are asked for last: the requests above go by topic name.
        present = self._cluster.topic_ids(sorted({tp.topic for tp in names.values()}))
        for key, tp in names.items():
            if present.get(tp.topic) != key.topic_id or any(tp not in ends for ends in found):
                raise TransientError(
                    f"the brokers can't tell the history of {tp.topic}-{tp.partition} now", code="TDM-I033"
                )
        return found


def _taint(older: Generation, newer: Generation, key: PartitionKey, end: int) -> Taint:
    old = older.positions[key]
    cut_at = end if 0 <= end < old.offset else -1
    where = f"at {cut_at}" if cut_at >= 0 else "somewhere"
    reason = f"the log was cut {where} below what was read ({old.offset}), before generation {newer.number} read it"
    return cut_taint(older, key, reason, cut_at=cut_at)


def cut_taint(older: Generation, key: PartitionKey, reason: str, *, cut_at: int) -> Taint:
    """Return the taint of a copy that holds records which its log has lost, from `cut_at` on (-1: not known)."""
    old = older.positions[key]
    return Taint(key=key, offset=old.offset, reason=reason, cut_at=cut_at, epoch=old.epoch)
