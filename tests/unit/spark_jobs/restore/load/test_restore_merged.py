"""A task that merges all partitions of a topic, as far as it reads: what it holds of them, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.restores.held_memory import MIB, held_by_merges, merging_task

from tandem.spark_jobs.restore.load import load
from tandem.spark_jobs.restore.load.load import _Attempt, nothing_yet


def test_what_is_held_does_not_grow_with_objects(tmp_path: Path) -> None:
    """However large they are, and however many: a share of what all may take, or a block, and what is decompressed."""
    (small, small_most), (large, large_most), (many, many_most) = held_by_merges(
        tmp_path, [(8, MIB // 4), (8, MIB), (24, MIB)]
    )
    assert large - small < MIB, "the last object that was fetched is kept"
    assert large_most - small_most < 2 * MIB
    assert many - large < 16 * 100_000, "less than 100 kB of a source, with blocks of 16 KiB"
    assert many_most - large_most < 16 * 100_000


def test_objects_that_fit_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few and small ones everything is held: nothing is read a second time."""
    task = merging_task(tmp_path / "store", sources=4, size=MIB // 8)
    store, asked = type(task.store.open()), []
    get = store.get

    def counted(*args: Any, **how: Any) -> bytes:
        asked.append(args)
        return get(*args, **how)

    monkeypatch.setattr(store, "get", counted)
    assert list(_Attempt(task, load._reader_of(task))._units(nothing_yet(task)))
    assert len(asked) == 4
