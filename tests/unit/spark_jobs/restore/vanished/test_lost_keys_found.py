"""What `tandem restore vanished` brings back of a kept copy: lost keys, and nothing that has expired."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.spark_jobs.restore.vanished.find import KeptPartition, find_lost_keys, lost_records

LOST = {12, 17, 26}


@pytest.mark.parametrize(
    ("policy", "newest_start", "found"),
    [("compact", 20, [12, 17, 26]), ("compact,delete", 15, [17, 26]), ("compact,delete", 20, [26])],
)
def test_nothing_comes_back_that_has_expired(policy: str, newest_start: int, found: list[int]) -> None:
    """Where the policy has always deleted, the highest log start that any of the copies knows is the limit."""
    store, spec = MemoryStore(), TopicSpec("t", config={"cleanup.policy": policy})
    key = PartitionKey(spec.topic().topic_id, 0)
    one, two, three = (Backup.claim(store, topics=[spec], number=n, instance="aba"[n - 1]) for n in (1, 2, 3))
    for backup, offsets in ((one, range(30)), (two, sorted({*range(30)} - LOST)), (three, sorted({*range(30)} - LOST))):
        ends = {("t", 0): 30}
        backup.commit(records("t", 0, offsets), ends=ends, base_end=ends)
        backup.complete()
    if policy != "compact":
        for backup, start in ((two, 15), (three, newest_start)):
            state = backup.writer.state
            state.positions[key] = replace(state.positions[key], log_start=start)
    partition = KeptPartition(key=key, topic="t", kept=one.writer.state, missing_in=two.writer.state)
    lost = find_lost_keys(store, partition, [three.writer.state])
    assert sorted(lost.offsets.values()) == found
    assert [record.offset for record in lost_records(store, lost)] == found
