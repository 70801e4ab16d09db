"""Applies the cluster's metadata to assigned partitions: leaders, missing topics, topics recreated with a new id."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from tandem.sink.kafka.errors.error_codes import ErrorCode, ErrorMeaning, name_of
from tandem.sink.kafka.events import FaultKind
from tandem.sink.kafka.fetch.assignment import AssignedPartition, Assignment, backoff
from tandem.sink.kafka.wire import requests, topic_ids

# Seconds.
MISSING_RETRY = 5.0  # a missing topic is looked up at this interval
DENIED_RETRY = 30.0
CONFIRM_MISSING = 0.4  # "unknown topic" counts if two responses this far apart have it: brokers lag behind
STALE_RETRY = 1.0

TELL_AFTER = 4  # failures in a row before a partition's trouble is reported


def apply_topic_views(assignment: Assignment, views: Iterable[requests.TopicView], now: float) -> None:
    """Apply the topics of a metadata response to the assigned partitions."""
    for view in views:
        for part in list(assignment.by_topic.get(view.name, {}).values()):
            apply_topic_view(assignment, part, view, now)


def apply_topic_view(assignment: Assignment, part: AssignedPartition, view: requests.TopicView, now: float) -> None:
    """Apply a broker's metadata of a topic to one partition."""
    if ErrorCode.of(view.error_code).meaning is ErrorMeaning.DENIED:
        mark_denied(assignment, part, now)
        assignment.want_metadata(now + DENIED_RETRY)
        return
    gone = _gone(part, view)
    if gone:
        _suspect(assignment, part, gone, view.topic_id, now)
        return
    if view.error_code:
        _not_yet(assignment, part, name_of(view.error_code), now)
        return
    part.suspect_since = None
    if part.topic_id is None and view.topic_id is not None:
        assignment.name(view.topic_id, part.tp.topic)
        part.topic_id = view.topic_id
    if part.missing:
        part.missing = False
        part.told.discard(FaultKind.UNKNOWN_TOPIC)
    leader, epoch = view.partitions[part.tp.partition]
    if leader < 0:
        _not_yet(assignment, part, "it has no leader", now)
    else:
        set_leader(assignment, part, leader, epoch, now)
    assignment.update_session(part)


def _not_yet(assignment: Assignment, part: AssignedPartition, why: str, now: float) -> None:
    assignment.want_metadata(now + backoff(part.failures, first=0.1))
    if part.failures >= TELL_AFTER:
        assignment.add_fault(part, FaultKind.TRANSIENT, f"the cluster can't say who leads {part}: {why}", now)
    part.failures += 1


def describes(part: AssignedPartition, view: requests.TopicView) -> bool:
    """Tell whether metadata without an error has the partition, in a topic that is not known to be another one."""
    return not _gone(part, view)


def _gone(part: AssignedPartition, view: requests.TopicView) -> str:
    if ErrorCode.of(view.error_code).meaning is ErrorMeaning.UNKNOWN_TOPIC:
        return f"topic {part.tp.topic} does not exist"
    if view.error_code:
        return ""
    if part.topic_id is not None and view.topic_id is not None and part.topic_id != view.topic_id:
        return f"topic {part.tp.topic} is another one of the same name now"
    if part.tp.partition not in view.partitions:
        return f"topic {part.tp.topic} has no partition {part.tp.partition}"
    return ""


def _suspect(assignment: Assignment, part: AssignedPartition, detail: str, new_id: UUID | None, now: float) -> None:
    if part.missing:
        assignment.want_metadata(now + MISSING_RETRY)
        return
    if part.suspect_since is None:
        part.suspect_since = now
    if now - part.suspect_since < CONFIRM_MISSING:
        assignment.want_metadata(now + CONFIRM_MISSING)
        return
    part.missing = True
    another = None if new_id is None or new_id == part.topic_id else topic_ids.as_text(new_id)
    assignment.add_fault(part, FaultKind.UNKNOWN_TOPIC, detail, now, topic_id=another)
    assignment.update_session(part)
    assignment.want_metadata(now + MISSING_RETRY)


def mark_denied(assignment: Assignment, part: AssignedPartition, now: float) -> None:
    """Record that the principal has no Read right on the topic."""
    detail = f"not allowed to read topic {part.tp.topic}: it takes READ and DESCRIBE"
    assignment.add_fault(part, FaultKind.UNAUTHORIZED, detail, now)
    assignment.retry(part, now + DENIED_RETRY)


def set_leader(assignment: Assignment, part: AssignedPartition, leader: int, epoch: int, now: float) -> None:
    """Set leader and epoch; an epoch below the known one is stale and ignored. Does not call `update_session`."""
    if 0 <= epoch < part.leader_epoch:
        assignment.want_metadata(now + STALE_RETRY)
        return
    former, former_epoch = part.leader, part.leader_epoch
    # The first metadata of a partition may be older than the leader that the reader knows; later ones are not.
    if former < 0 and not 0 <= epoch < part.known_epoch:
        former, former_epoch = part.known_leader, part.known_epoch
    # Each change of leader raises the epoch: if it has risen by two or more, another broker may have led in between.
    returned = leader == former and epoch > former_epoch + 1 and former_epoch >= 0
    moved = leader != former or returned
    if former >= 0 and (moved or epoch > former_epoch >= 0):
        assignment.add_fault(
            part,
            FaultKind.LEADER_MOVED if moved else FaultKind.EPOCH_RAISED,
            f"the leader of {part} moved from broker {former} to {leader}, epoch {epoch}"
            if moved
            else f"broker {leader} leads {part} in epoch {epoch} now",
            now,
            old_leader=former,
            new_leader=leader,
            old_epoch=former_epoch,
            new_epoch=epoch,
        )
    if moved:
        part.end = part.high_watermark = -1
    part.leader, part.leader_epoch = leader, epoch
