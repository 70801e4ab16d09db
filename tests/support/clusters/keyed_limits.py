"""Limits with which a few records are many, so that keyed work goes by Spark's shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from tandem.spark_jobs.compaction import memory_or_shuffle
from tandem.spark_jobs.restore import merge_source
from tandem.spark_jobs.restore.merge_source import MergeLimits
from tandem.spark_jobs.retention.sweep_plan import SweepRules

#: A topic of a few records has several slices.
MERGE_LIMITS = MergeLimits(small_records=0, sample_bytes=2000, slice_bytes=20_000, bucket_records=20)


@contextmanager
def by_shuffle() -> Iterator[None]:
    """Have sweeps, comparisons, the newest of each key and merges go by a shuffle; drivers decide it, not tasks."""
    with ExitStack() as stack:
        stack.enter_context(patch.dict(SweepRules.__init__.__kwdefaults__, most_in_memory=0))
        stack.enter_context(patch.object(memory_or_shuffle, "COMPARED_IN_MEMORY", 0))
        stack.enter_context(patch.object(memory_or_shuffle, "LOADED_IN_MEMORY", 0))
        stack.enter_context(patch.object(merge_source, "DEFAULT_LIMITS", MERGE_LIMITS))
        yield
