"""Watches what chains tell of topics for signs that they lost records by accident.

It compares each state of a generation with the one before, and each complete generation with its predecessor; it reads
nothing. The rules are fixed thresholds. A sign lasts for a day after it was noticed last. What this process has not
seen it does not know: after a start, only what two complete generations in the store show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from tandem.backup_avro.chain.entries import PartitionKey, Topic
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection import moments
from tandem.controller.decision.loss_sign_format import LossKind, LossSign
from tandem.controller.decision.pair_rules import active_of

_HOUR_MS: Final = 3_600_000
_LASTS_MS: Final = 24 * _HOUR_MS
_MOST: Final = 100
"""Signs that are remembered; one more evicts the one that was noticed longest ago."""
_TOMBSTONES: Final = 1000
"""Tombstones of a flush, and at least half of its records, that are a sign: fewer are everyday work."""
_RECORDS: Final = 1000
"""Records of a first reading below which a fall means nothing."""
_QUIET_H, _BUSY_H = 3, 24
"""Hours without a record that are a sign, after so many hours with some in each."""
_QUIET: Final = ((1 << _QUIET_H) - 1) << 1  # bit 0 is the present hour, which is not over
_BUSY: Final = ((1 << _BUSY_H) - 1) << (_QUIET_H + 1)
_COMPACT: Final = frozenset({"compact"})


class LossDetector:
    """Folds states of generations into signs. Not thread-safe; takes an int or two for each topic."""

    def __init__(self) -> None:
        self._signs: dict[tuple[LossKind, str], LossSign] = {}
        self._hours: dict[str, int] = {}
        self._hour = 0
        self._wrote_at: dict[str, int] = {}

    def note_states(self, before: Mapping[int, Generation], after: Collection[Generation]) -> tuple[LossSign, ...]:
        """Compare all states as they are now with those before, by number; return the signs, the newest first."""
        for state in after:
            former = before.get(state.number)
            if state.complete and (former is None or not former.complete):
                self._note_turn(state, after)
            elif former is not None and former is not state and state.complete and not state.sealed:
                self._note_entries(former, state)
        active = active_of(after)
        if active is not None:
            self._note_activity(before.get(active.number), active)
        now = max((state.at for state in after), default=0)
        self._signs = {name: sign for name, sign in self._signs.items() if now - sign.at < _LASTS_MS}
        return tuple(sorted(self._signs.values(), key=lambda sign: (-sign.at, sign.kind, sign.topic)))

    # --- within a generation ------------------------------------------------------------------------------------------

    def _note_entries(self, before: Generation, after: Generation) -> None:
        if not before.moments:
            return
        good = before.moments[-1].at
        for topic_id, topic in after.topics.items():
            old = before.topics.get(topic_id)
            if old is not None and old is not topic:
                self._note_settings(old, topic, after.at, good)
        moved: Counter[str] = Counter()
        for key, position in after.positions.items():
            was = before.positions.get(key)
            if was is not position and was is not None and position.log_start > was.log_start:
                _add_moved(moved, (before, after), key, position.log_start - was.log_start)
        self._note_starts(moved, after.at, good)
        for name, (count, tombstones) in _flushed(before, after).items():
            if tombstones >= _TOMBSTONES and 2 * tombstones >= count:
                what = f"{tombstones:,} of {count:,} records that were stored together are tombstones"
                self._note(LossKind.TOMBSTONES, name, after.at, good, what)

    def _note_settings(self, old: Topic, new: Topic, at: int, good: int) -> None:
        if new.removed or old.removed:
            return
        if old.policies and new.policies and old.policies != new.policies and "compact" in old.policies | new.policies:
            what = f"its cleanup.policy was changed from {_names(old)} to {_names(new)}"
            self._note(LossKind.POLICY, new.name, at, good, what)
        if old.partitions != new.partitions and new.compacted:
            what = f"it has {new.partitions} partitions, and had {old.partitions}: keys may lie in others now"
            self._note(LossKind.PARTITIONS, new.name, at, good, what)

    def _note_starts(self, moved: Mapping[str, int], at: int, good: int) -> None:
        for name, offsets in moved.items():
            what = f"its log starts moved by {offsets:,} offsets, although it only compacts"
            self._note(LossKind.LOG_START, name, at, good, what)

    def _note_activity(self, before: Generation | None, active: Generation) -> None:
        """Note in which hours each compacted topic had records; an hour that was not watched makes all forgotten."""
        hour = active.at // _HOUR_MS
        if hour - self._hour == 1:
            self._hours = {name: hours << 1 & (_QUIET | _BUSY | 1) for name, hours in self._hours.items()}
        elif hour != self._hour:
            self._hours.clear()
        turned, self._hour = hour != self._hour, hour
        for name in {} if before is None or before is active else _flushed(before, active):
            self._hours[name] = self._hours.get(name, 0) | 1
            self._wrote_at[name] = active.at
            self._signs.pop((LossKind.SILENT, name), None)
        if not turned:
            return
        self._hours = {name: hours for name, hours in self._hours.items() if hours}
        self._wrote_at = {name: at for name, at in self._wrote_at.items() if name in self._hours}
        for name, hours in self._hours.items():
            if not hours & (_QUIET | 1) and hours & _BUSY == _BUSY:
                what = f"no record for {_QUIET_H} hours, after records in each of the {_BUSY_H} hours before"
                self._note(LossKind.SILENT, name, active.at, self._wrote_at[name], what)

    # --- between two turns --------------------------------------------------------------------------------------------

    def _note_turn(self, newer: Generation, generations: Iterable[Generation]) -> None:
        """Compare a generation that is complete with the newest complete one before it, if that is still there."""
        assert newer.completed_at is not None
        complete = (g for g in generations if g.complete and g.whole and g.number < newer.number)
        older = max(complete, key=lambda g: g.number, default=None)
        found = None if older is None else moments.horizon_at(older, newer.claim.at)
        if older is None or found is None:
            return
        at, good = newer.completed_at, found.at
        moved: Counter[str] = Counter()
        for key, position in newer.positions.items():
            was = older.positions.get(key)
            if was is not None and position.base.start > was.log_start:
                _add_moved(moved, (older, newer), key, position.base.start - was.log_start)
        self._note_starts(moved, at, good)
        had, has = _scanned(older), _scanned(newer)
        for topic_id, topic in newer.topics.items():
            old = older.topics.get(topic_id)
            if old is None:
                continue
            self._note_settings(old, topic, at, good)
            if _only_compacts(topic) and had[topic_id] >= _RECORDS and 2 * has[topic_id] < had[topic_id]:
                what = f"generation {newer.number} found {has[topic_id]:,} records in it at its first reading, "
                what += f"generation {older.number} {had[topic_id]:,}"
                self._note(LossKind.FEWER_RECORDS, topic.name, at, good, what)

    def _note(self, kind: LossKind, topic: str, at: int, good: int, what: str) -> None:
        known = self._signs.get((kind, topic))
        if known is not None and at - known.at < _LASTS_MS:
            good, at = min(good, known.last_good), max(at, known.at)
        elif known is None and len(self._signs) >= _MOST:
            del self._signs[min(self._signs, key=lambda name: self._signs[name].at)]
        self._signs[kind, topic] = LossSign(kind=kind, topic=topic, at=at, last_good=good, what=what)


def _flushed(before: Generation, after: Generation) -> Mapping[str, tuple[int, int]]:
    """Return (records, tombstones) by compacted topic that the tail stored between two states of a generation.

    What merging wrote again lies below the position before.
    """
    counts: dict[str, tuple[int, int]] = {}
    for name in after.objects.keys() - before.objects.keys():
        for part in after.objects[name].parts:
            was, topic = before.positions.get(part.key), after.topics.get(part.key.topic_id)
            if part.scan is None and was is not None and part.first >= was.offset and topic and topic.compacted:
                count, tombstones = counts.get(topic.name, (0, 0))
                counts[topic.name] = count + part.records, tombstones + part.tombstones
    return counts


def _scanned(state: Generation) -> Counter[str]:
    """Return the records of the first reading by topic id: about as many as keys, as the log was compacted."""
    counts: Counter[str] = Counter()
    for _, part in state.live_parts():
        if part.scan is not None:
            counts[part.key.topic_id] += part.records
    return counts


def _add_moved(moved: Counter[str], states: Iterable[Generation], key: PartitionKey, offsets: int) -> None:
    """Add the offsets by which a log start moved to those of its topic, if that only compacts by both states."""
    topics = [state.topics.get(key.topic_id) for state in states]
    if all(map(_only_compacts, topics)) and topics[-1] is not None:
        moved[topics[-1].name] += offsets


def _only_compacts(topic: Topic | None) -> bool:
    return topic is not None and topic.policies == _COMPACT


def _names(topic: Topic) -> str:
    return ",".join(sorted(topic.policies))


def merged(signs: Iterable[LossSign]) -> Iterator[LossSign]:
    """Yield one sign for each kind and topic of several instances' signs: as of the earliest last good moment."""
    found: dict[tuple[LossKind, str], LossSign] = {}
    for sign in signs:
        known = found.setdefault((sign.kind, sign.topic), sign)
        if sign.last_good < known.last_good:
            found[sign.kind, sign.topic] = replace(sign, at=max(sign.at, known.at))
    yield from (found[name] for name in sorted(found))
