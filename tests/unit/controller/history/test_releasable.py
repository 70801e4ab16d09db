"""What `tandem release` may let go of: all that no newer generation can ever cover, and nothing else."""

from __future__ import annotations

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.pairs.sights import sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection.coverage import CUT_OFF_KEPT, vanished_reason
from tandem.controller.history.releasable import ReleaseDocument, release_document
from tandem.controller.metrics.instance_metrics import collect_backup_metrics
from tandem.controller.status.check import CheckLimits, Severity, check_pair
from tandem.controller.status.health import Fault
from tandem.controller.status.overview import overview

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


def test_a_log_start_that_moved_is_named_as_a_cause_of_vanished_keys() -> None:
    """Retention or DeleteRecords move it; accidents of brokers do not."""
    store, one = covered(log_start=3)
    one.clearing({one.key("t", 1): vanished_reason(3, 2, [0])})
    (problem,) = (found for found in overview(sight(store)).problems if found.fault is Fault.KEYS_VANISHED)
    assert problem.message.endswith(
        "keeps them; log starts have moved since (t-1 to 3), as retention or DeleteRecords move them"
    )


def test_vanished_keys_are_told_of_until_they_are_released() -> None:
    """By `status` and `check`, by the metric, and by nothing once all is cleared."""
    store, one = covered()
    clearing = one.clearing({one.key("t", 1): vanished_reason(1200, 2, [7])})
    told = overview(sight(store))
    (problem,) = (found for found in told.problems if found.fault is Fault.KEYS_VANISHED)
    assert problem.message == (
        "1,200 keys vanished from their topics without a tombstone: t-1 (1,200); only generation 1 still has them, and "
        "keeps them"
    )
    assert "tandem release" in problem.remedy
    assert check_pair(told, {}, CheckLimits()).severity is Severity.CRITICAL
    assert collect_backup_metrics(sight(store), "a").vanished_keys == 1200
    one.append(EntryKind.CLEARED, clearing=clearing)
    assert collect_backup_metrics(sight(store), "a").vanished_keys == 1200
    one.clearing()
    assert collect_backup_metrics(sight(store), "a").vanished_keys == 0
    assert not [found for found in overview(sight(store)).problems if found.fault is Fault.KEYS_VANISHED]
