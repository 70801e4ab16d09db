"""Drafts the next commit: the changes since the last one in partition progress, topics and consumer groups."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import GroupOffset, PartitionKey, Position, Topic
from tandem.backup_avro.chain.generation import Generation
from tandem.sink.kafka.cluster.guarded_topics import (
    ANY_GROUP,
    expires,
    held_by_restore,
    own_config,
    tombstone_guarantee_s,
)
from tandem.sink.process import clock
from tandem.sink.read.progress.marks import MarkRecorder
from tandem.sink.read.progress.partition_progress import CONFIRM_CEILING_S, PartitionProgress
from tandem.sink.read.progress.tombstone_guarantee import SHORTEST_RETENTION_S, longest_gap_s, shorter_guarantee
from tandem.sink.read.reader_context import ReaderContext
from tandem.sink.read.survey import ClusterSurvey
from tandem.sink.write.commit import CommitDraft

_HEAD_FRESH_MS = 10_000
_PATIENCE_S = 600.0
"""Seconds that commits wait for a topic's description; an outage of the brokers' admin side is shorter."""


class CommitDrafter:
    """Tracks which state the chain has and which it lacks. Used by the pipeline's thread.

    `guarded` are the topics that exist as of the last survey, and denied ones as they were known before. `copies`
    returns the generations of the pair, which may know a topic from before a restore began to write to it.
    """

    def __init__(
        self,
        context: ReaderContext,
        state: Generation,
        *,
        max_objects: int,
        flush_interval_s: float,
        copies: Callable[[], Sequence[Generation]] = lambda: (),
    ) -> None:
        self._context = context
        self._copies = copies
        self._state = state
        self._max_objects = max_objects
        self._marks = MarkRecorder(flush_interval_s=flush_interval_s)
        self._topics = dict(state.topics)
        self._longer: dict[str, tuple[float | None, float]] = {}
        self._asked: dict[str, float] = {}
        self._unsure_since: float | None = None
        self._news: dict[str, Topic] = {}
        self.guarded: tuple[Topic, ...] = ()
        self._groups = {name: tuple(offsets.values()) for name, offsets in state.groups.items()}
        self._groups_seen = self._groups
        self._unrecorded = self._unrecorded_seen = dict(state.unrecorded)

    def survey(self, survey: ClusterSurvey) -> list[Topic]:
        """Apply a survey; return the topics that are gone since the last one."""
        now = clock.now()
        present = survey.found.with_known(self._topics)
        described = {topic.topic_id for topic in survey.found.topics}
        self._asked = {of: survey.asked if of in described else self._asked.get(of, -math.inf) for of in present}
        gone = [topic for name, topic in self._topics.items() if name not in present and not topic.removed]
        told = (self._topic_to_record(topic, now) for topic in present.values())
        for topic in [*told, *(replace(topic, removed=True) for topic in gone)]:
            if self._topics.get(topic.topic_id) != topic:
                self._topics[topic.topic_id] = self._news[topic.topic_id] = topic
        self.guarded = tuple(present.values())
        if survey.groups is not None:
            # What can't be listed now is as it was: no answer is no proof that a group is gone.
            still = self._unrecorded_seen if survey.groups.get(ANY_GROUP, ()) is None else {}
            self._unrecorded_seen = {name: why for name, why in still.items() if name not in survey.groups} | dict(
                survey.unrecorded
            )
            kept = self._on_unasked(present.keys() - {topic.topic_id for topic in survey.found.topics}, survey.groups)
            answered = self._still_known(survey.groups) | {
                name: offsets for name, offsets in survey.groups.items() if offsets
            }
            self._groups_seen = answered | {
                name: (*(one for one in answered.get(name, ()) if one not in offsets), *offsets)
                for name, offsets in kept.items()
            }
        for progress in self._context.progress_of.values():
            if progress.key.topic_id in present:
                config = present[progress.key.topic_id].config
                progress.set_guarantee(tombstone_guarantee_s(config), now=now)
                progress.expires = expires(config)
        return gone

    def _topic_to_record(self, topic: Topic, now: float) -> Topic:
        """Return a topic as the chain is to record it: a longer tombstone guarantee only once no gap began before it.

        A process that continues the chain judges by the recorded guarantee what was missed since, and which part of a
        scan counts.
        """
        before = self._topics.get(topic.topic_id)
        if held_by_restore(topic.config):
            known = before.config if before is not None else self._known_elsewhere(topic.topic_id)
            topic = replace(topic, config=own_config(topic.config, known))
        guaranteed_s = tombstone_guarantee_s(topic.config)
        if before is None or shorter_guarantee(tombstone_guarantee_s(before.config), guaranteed_s) == guaranteed_s:
            self._longer.pop(topic.topic_id, None)
            return topic
        if self._longer.get(topic.topic_id, (0.0, 0.0))[0] != guaranteed_s:
            self._longer[topic.topic_id] = (guaranteed_s, now)
        since = self._longer[topic.topic_id][1]
        settled = {progress.key for progress in self._context.progress_of.values() if progress.settled_since(since)}
        # A list, because the committer's thread adds positions meanwhile.
        if settled.issuperset(key for key in list(self._state.positions) if key.topic_id == topic.topic_id):
            del self._longer[topic.topic_id]
            return topic
        return replace(topic, config=before.config)

    def _known_elsewhere(self, topic_id: str) -> Mapping[str, str] | None:
        """Return the config of a topic from the newest generation that recorded it without a restore's settings."""
        for state in sorted(self._copies(), key=lambda state: -state.number):
            topic = state.topics.get(topic_id)
            if topic is not None and not held_by_restore(topic.config):
                return topic.config
        return None

    def reset_topic(self, topic_id: str) -> None:
        """Reset a topic whose news a commit has left out to the chain's state, so that they are committed again."""
        self._topics.pop(topic_id, None)
        known = self._state.topics.get(topic_id)
        if known is not None:
            self._topics[topic_id] = known

    def unsure(self) -> bool:
        """Return whether late records can't be judged yet, because their topic was last described too long ago.

        The guarantee at any time before the topic was last described is known. Tombstones that are cleaned later live
        for at least `SHORTEST_RETENTION_S` from then on. If no description comes for long, that time counts.
        """
        now, longest_s = clock.now(), longest_gap_s(SHORTEST_RETENTION_S)
        unknown = {topic_id for topic_id, asked in self._asked.items() if now - asked > longest_s}
        doubtful = [
            progress
            for progress in (self._context.progress_of.values() if unknown else ())
            if progress.key.topic_id in unknown
            and progress.gap_s(now) > longest_s
            and not (progress.lost or progress.frozen)
        ]
        self._unsure_since = (self._unsure_since or now) if doubtful else None
        if self._unsure_since is None:
            return False
        if now - self._unsure_since < _PATIENCE_S:
            return True
        for progress in doubtful:
            progress.hold_to(SHORTEST_RETENTION_S)
        return False

    def _still_known(self, groups: Mapping[str, tuple[GroupOffset, ...] | None]) -> dict[str, tuple[GroupOffset, ...]]:
        """Return the last known offsets of groups that could not be read: no answer is no proof that they are gone."""
        all_listed = ANY_GROUP not in groups
        return {
            name: offsets
            for name, offsets in self._groups_seen.items()
            if (groups[name] is None if name in groups else not all_listed)
        }

    def _on_unasked(
        self, topic_ids: Collection[str], groups: Mapping[str, tuple[GroupOffset, ...] | None]
    ) -> dict[str, tuple[GroupOffset, ...]]:
        """Return the last known offsets of groups on denied topics, for which the brokers were not asked.

        A group that was left out for lack of room has none.
        """
        found = {
            name: tuple(one for one in offsets if one.key.topic_id in topic_ids)
            for name, offsets in self._groups_seen.items()
            if groups.get(name) != ()
        }
        return {name: offsets for name, offsets in found.items() if offsets}

    def mark(self) -> None:
        """Take a mark, about once a second. Before COMPLETE none is taken: no restore can stop there."""
        now = self._context.now()
        if self._marks.due(now) and self._state.complete:
            self._marks.record_mark(now, self._context.progress_of.values())

    def has_changes(self) -> bool:
        """Return whether there is anything to commit besides being at head."""
        return bool(
            self._context.buffer.bytes
            or self._news
            or self._groups != self._groups_seen
            or self._unrecorded != self._unrecorded_seen
            or any(progress.changed() for progress in self._context.progress_of.values())
        )

    def proof_due(self) -> bool:
        """Return whether all partitions are read through but not by the chain: the last step before COMPLETE."""
        progress_of = self._context.progress_of.values()
        return all(progress.read_through for progress in progress_of) and not all(
            self._state.read_through(progress.key) for progress in progress_of
        )

    def confirm_interval_s(self) -> float:
        """Return the s between confirmations of being at head while no records arrive: min(D/8, 15 min).

        A D of less than a minute, or of 0, counts as a minute, for which a tail may be away.
        """
        guaranteed = (progress.retention_s for progress in self._context.progress_of.values())
        shortest = min((max(one, SHORTEST_RETENTION_S) for one in guaranteed if one is not None), default=86_400.0)
        return min(shortest / 8, CONFIRM_CEILING_S)

    def draft(self) -> CommitDraft | None:
        """Cut all buffers and return the draft, None if it would be empty."""
        now = clock.now()
        # `head_at` holds for all partitions that are not named, so it must not fall behind its last value.
        stale = max(self._context.now() - _HEAD_FRESH_MS, self._state.heads[1])
        named: list[PartitionProgress] = []
        unnamed: list[PartitionProgress] = []
        for progress in self._context.progress_of.values():
            # In the middle of a scan range there are records, while the position has not changed.
            news = progress.changed() or self._context.buffer.holds(progress.key)
            # A head seen by an earlier process was seen by other clocks than those that this entry records.
            apart = progress.head_at < stale or progress.skew is not None
            (named if news or apart else unnamed).append(progress)
        taints = tuple(taint for taint in (progress.taint(now) for progress in named) if taint is not None)
        groups: dict[str, tuple[GroupOffset, ...]] = {
            name: offsets for name, offsets in self._groups_seen.items() if self._groups.get(name) != offsets
        }
        groups |= {name: () for name in self._groups if name not in self._groups_seen}
        names = {progress.key: progress.topic for progress in self._context.progress_of.values()}
        adopted, self._context.adopted = self._context.adopted, {}
        draft = CommitDraft(
            stored=tuple(item for items in adopted.values() for item in items),
            objects=tuple(self._context.buffer.cut(_Names(self._state, names), max_objects=self._max_objects)),
            positions=(self._unread() if unnamed else {})
            | {progress.key: progress.record_commit() for progress in named},
            head_at=min((progress.head_at for progress in unnamed), default=None),
            skew=self._context.skew() if named or unnamed else None,
            topics=tuple(self._news.values()),
            groups=groups,
            unrecorded=None if self._unrecorded == self._unrecorded_seen else self._unrecorded_seen,
            marks=self._marks.cut(),
            taints=taints,
            names={progress.key.topic_id: progress.topic for progress in named},
        )
        self._news = {}
        self._groups = self._groups_seen
        self._unrecorded = self._unrecorded_seen
        said = (draft.objects, draft.stored, draft.positions, draft.topics, draft.groups, draft.head_at)
        return draft if any(said) or draft.unrecorded is not None else None

    def _unread(self) -> dict[PartitionKey, Position]:
        """Return the chain's positions of partitions not read now: the common `head_at` must not hold for them."""
        read = {progress.key for progress in self._context.progress_of.values()}
        return {key: self._state.restated(key) for key in list(self._state.positions) if key not in read}


class _Names:
    """Makes the keys of the objects of one cut."""

    def __init__(self, state: Generation, names: dict[PartitionKey, str]) -> None:
        self._where = (state.claim.pair, state.claim.instance, state.claim.generation)
        self._mark = layout.mark_of(state.holder)
        self._seq = state.seq + 1
        self._names = names

    def data(self, key: PartitionKey, first: int, last: int) -> str:
        """Return the key of an object of one partition."""
        nonce, topic = self._nonce(), self._names[key]
        return layout.data_key(self._where, topic=topic, partition=key.partition, first=first, last=last, nonce=nonce)

    def journal(self) -> str:
        """Return the key of an object that partitions share."""
        return layout.journal_key(*self._where, seq=self._seq, nonce=self._nonce())

    def _nonce(self) -> str:
        return layout.marked(secrets.token_hex(8), self._mark)
