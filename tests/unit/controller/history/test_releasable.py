"""What `tandem release` may let go of: all that no newer generation can ever cover, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pairs.sights import listening, message, sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.documents.release import Release
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection.losses import (
    CUT_OFF_KEPT,
    TOPIC_GONE_KEPT,
    LossCause,
    log_start_reason,
    loss_of,
    vanished_reason,
)
from tandem.controller.coordination.heartbeat import Heartbeat, message_fields
from tandem.controller.history.releasable import ReleaseDocument, release_document
from tandem.controller.metrics.instance_metrics import collect_backup_metrics
from tandem.controller.status.check import CheckLimits, Severity, check_pair
from tandem.controller.status.health import Fault
from tandem.controller.status.overview import Overview, overview

SPEC = TopicSpec("t", partitions=2)


def covered(*, log_start: int = 0) -> tuple[MemoryStore, Backup]:
    """Generation 1, sealed, and generation 2, which covers it and knows this log start."""
    store = MemoryStore()
    both = [*records("t", 0, range(5)), *records("t", 1, range(5))]
    one = Backup.completed(store, both, topics=[SPEC])
    two = Backup.claim(store, topics=[SPEC], number=2, instance="b")
    two.commit(both, log_start=log_start)
    two.complete()
    one.seal()
    return store, one


def with_two_later_copies() -> tuple[MemoryStore, Backup, Backup]:
    """Generations 1 and 2, and a third one; all are complete, and none is sealed."""
    store = MemoryStore()
    one, two, three = (Backup.claim(store, topics=[SPEC], number=n, instance="aba"[n - 1]) for n in (1, 2, 3))
    for backup in (one, two, three):
        backup.commit([*records("t", 0, range(5)), *records("t", 1, range(5))])
        backup.complete()
    return store, one, two


def release(store: MemoryStore) -> ReleaseDocument:
    """What would be released of the topic, which the cluster has."""
    return release_document(sight(store, topics=[SPEC]), "t", topic_id=None, partitions=(), generation=None)


def test_what_is_covered_goes_without_a_release() -> None:
    """It is the backup of a topic that exists."""
    store, _ = covered()
    with pytest.raises(RefusedError):
        release(store)


def test_what_lies_below_a_log_start_that_moved_can_be_released() -> None:
    """The newer copy begins above it, so it never covers that."""
    store, _ = covered(log_start=3)
    found = release(store)
    assert [(loss.generation, loss.partitions) for loss in found.losses] == [(1, (0, 1))]
    assert "the log start moved to 3" in found.why


@pytest.mark.parametrize("reason", [vanished_reason(1200, 2, [7]), CUT_OFF_KEPT])
def test_what_clearing_left_for_good_can_be_released(reason: str) -> None:
    """Though chains alone say that a newer generation covers it."""
    store, one = covered()
    clearing = one.clearing({one.key("t", 1): reason})
    one.append(EntryKind.CLEARED, clearing=clearing)
    found = release(store)
    assert [(loss.generation, loss.partitions) for loss in found.losses] == [(1, (1,))]
    assert (found.partitions, found.through, found.why) == ((1,), 1, reason)


def test_a_release_reaches_no_generation_for_a_partition_that_is_not_shown_there() -> None:
    """It would be cleared there without a comparison, and may have lost other keys: one release after the other."""
    store, one, two = with_two_later_copies()
    for backup, number in ((one, 1), (two, 0)):
        backup.seal()
        lost = {backup.key("t", number): vanished_reason(1, backup.number + 1, [3])}
        backup.append(EntryKind.CLEARED, clearing=backup.clearing(lost))
    seen = sight(store, topics=[SPEC])
    first = release_document(seen, "t", topic_id=None, partitions=(), generation=None)
    assert (first.partitions, first.through) == ((1,), 1)
    assert [(loss.generation, loss.partitions) for loss in first.losses] == [(1, (1,))]
    assert first.warnings == ("1 more partitions are kept in later generations: run it once more for them",)
    seen = replace(seen, releases=(_released(first),))
    second = release_document(seen, "t", topic_id=None, partitions=(), generation=None)
    assert (second.partitions, second.through, second.warnings) == ((0,), 2, ())


def test_an_older_generation_that_was_not_compared_yet_is_named() -> None:
    """A checkpoint keeps it; it has the released partition too, and may have lost other keys of it."""
    store, one, two = with_two_later_copies()
    one.seal()
    two.seal()
    two.append(EntryKind.CLEARED, clearing=two.clearing({two.key("t", 1): vanished_reason(1, 3, [3])}))
    found = release_document(sight(store, topics=[SPEC]), "t", topic_id=None, partitions=(), generation=None)
    assert (found.partitions, found.through) == ((1,), 2)
    [warning] = found.warnings
    assert warning.startswith("generation 1 has partition 1 too, and no loss is known there")


def _released(found: ReleaseDocument) -> Release:
    return Release(
        number=1,
        pair=PAIR,
        topic=found.topic,
        topic_id=found.topic_id,
        partitions=found.partitions,
        through=found.through,
        at=0,
        by="me@here",
        reason="",
    )


def test_a_log_start_that_moved_is_told_of_though_no_key_was_counted() -> None:
    """As where nothing proves which of them were not deleted since: the records below it are in that copy alone."""
    store, one = covered(log_start=3)
    one.clearing({one.key("t", 1): log_start_reason(3)})
    told = overview(sight(store))
    (problem,) = (found for found in told.problems if found.fault is Fault.KEYS_VANISHED)
    assert problem.message.startswith("records vanished from their topics without a tombstone: t-1 (likely cause: log ")
    (loss,) = told.losses
    assert (loss.cause, loss.keys, loss.missing_in, loss.before) == (LossCause.LOG_START_MOVED, None, None, None)
    assert loss.commands[0] == "tandem restore vanished t --generation 1"


def test_keys_that_vanished_from_a_copy_that_is_kept_are_told_of_before_any_clearing() -> None:
    """Its owner has compared it, and says so in its heartbeats; what the chain records counts from then on."""
    store, one = covered()
    why = vanished_reason(7, 2, [1], cause=LossCause.POLICY_CHANGED)
    loss = loss_of(one.key("t", 1), why)
    assert loss is not None
    at = sight(store).at
    said = message_fields(Heartbeat(vanished=((1, loss), (2, loss), (9, loss))))

    def told(instance: str) -> Overview:
        return overview(sight(store, listener=listening(message(instance=instance, at=at, **said))))

    (found,) = told("a").losses
    assert (found.generation, found.partition, found.keys, found.missing_in) == (1, 1, 7, 2)
    assert Fault.KEYS_VANISHED in {problem.fault for problem in told("a").problems}
    assert [one.generation for one in told("b").losses] == [2], "only of its own"
    one.clearing({one.key("t", 0): CUT_OFF_KEPT})
    assert [found.cause for found in told("a").losses] == [LossCause.LOG_CUT]


@pytest.mark.parametrize(
    ("reason", "cause"), [(CUT_OFF_KEPT, LossCause.LOG_CUT), (TOPIC_GONE_KEPT, LossCause.TOPIC_GONE)]
)
def test_what_only_an_older_copy_has_is_a_warning(reason: str, cause: LossCause) -> None:
    """No problem of the pair, but nothing that may go by unseen."""
    store, one = covered()
    one.clearing({one.key("t", 0): reason, one.key("t", 1): reason})
    told = overview(sight(store))
    assert not [found for found in told.problems if found.fault is Fault.KEYS_VANISHED]
    loss, other = told.losses
    assert (loss.cause, loss.keys, loss.partition, other.partition) == (cause, None, 0, 1)
    assert loss.commands[0] == "tandem restore t --generation 1 --no-merge --suffix .kept"
    (finding,) = (
        found for found in check_pair(told, {}, CheckLimits()).findings if "only generation 1" in found.message
    )
    assert (finding.severity, f"({cause.value})" in finding.message) == (Severity.WARNING, True)
    assert "t-0 and 1 more partitions" in finding.message


def test_vanished_keys_are_told_of_until_they_are_released() -> None:
    """By `status` and `check`, by the metric, and by nothing once all is cleared."""
    store, one = covered()
    why = vanished_reason(1200, 2, [7], cause=LossCause.POLICY_CHANGED)
    clearing = one.clearing({one.key("t", 1): why})
    told = overview(sight(store))
    (loss,) = told.losses
    assert (loss.topic, loss.partition, loss.generation, loss.keys, loss.missing_in) == ("t", 1, 1, 1200, 2)
    assert (loss.cause, loss.reason) == (LossCause.POLICY_CHANGED, why)
    assert loss.after is not None
    assert loss.before is not None
    assert loss.commands == ("tandem restore vanished t --generation 1", f"tandem release t --topic-id {loss.topic_id}")
    (problem,) = (found for found in told.problems if found.fault is Fault.KEYS_VANISHED)
    assert problem.message == (
        "1,200 keys vanished from their topics without a tombstone: t-1 (1,200; likely cause: policy "
        "changed); only generation 1 still has them, and keeps them"
    )
    assert "tandem release" in problem.remedy
    assert check_pair(told, {}, CheckLimits()).severity is Severity.CRITICAL
    assert collect_backup_metrics(sight(store), "a").vanished_keys == 1200
    one.append(EntryKind.CLEARED, clearing=clearing)
    assert collect_backup_metrics(sight(store), "a").vanished_keys == 1200
    one.clearing()
    assert overview(sight(store)).losses == ()
    assert collect_backup_metrics(sight(store), "a").vanished_keys == 0
    assert not [found for found in overview(sight(store)).problems if found.fault is Fault.KEYS_VANISHED]
