"""Random partitions of a backup: gaps, logs that begin late, tombstones, also at the end, and none at all."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from support.backups.build_backup import records
from tandem.backup_avro.record.current import Record

#: How many logs a campaign restores at once: `LOGS=1000`.
MANY = int(os.environ.get("LOGS", "100"))
MANY_LOGS = pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


def random_log(dice: random.Random, topic: str, partition: int, gap: Callable[[], int]) -> list[Record]:
    """Return the records of a partition; `gap` gives the distance from each offset to the next."""
    if dice.random() < 0.15:
        return []
    offset, offsets = dice.choice([0, 0, 1, 50, 3_000, 700_000]), []
    for _ in range(dice.choice([1, 2, 60, 300])):
        offsets.append(offset)
        offset += gap()
    last = offsets[-1] if dice.random() < 0.3 else -1
    return records(topic, partition, offsets, tombstones=[last, *dice.sample(offsets, len(offsets) // 10)])
