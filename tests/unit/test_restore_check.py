"""Whose each record of a target is, of which several tasks have written some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from doubles import MemoryStore
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs import offset_pages
from spark_jobs.offset_map import Row
from spark_jobs.restore_check import CheckTask, Expected, Stretch, map_tasks, stretches


class _Store(MemoryStore):
    """A store, and the address of it; counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: Counter[str] = Counter()

    def get(self, key: str) -> bytes:
        self.gets[key] += 1
        return super().get(key)

    def open(self) -> MemoryStore:
        return self


def _check(partition: int, pages: Mapping[int, str | None], *, shared: bool = True) -> CheckTask:
    return CheckTask(
        target="orders.new",
        target_topic_id="id",
        partition=partition,
        start=0,
        end=100,
        expected=tuple(
            Expected(what=f"orders-{source}", records=1, hash="", first=0, last=99, page=page)
            for source, page in pages.items()
        ),
        shared=shared,
        among_others=False,
        cluster=None,  # type: ignore[arg-type]  # nothing is read of it here
    )


@given(sources=st.integers(1, 5), targets=st.integers(1, 7))
def test_each_page_is_read_once_whatever_number_of_partitions_it_leads_to(sources: int, targets: int) -> None:
    """Every task has written into every partition, in two pages: each check gets its own rows, with their owners."""
    store: Any = _Store()
    pages: dict[int, str | None] = {}
    for source in range(sources):
        last = None
        for at in (0, 50):
            rows = [Row(source, at, at + 9, target, at + source * 10, 10) for target in range(targets)]
            last = offset_pages.write(store, rows, last, pair="p", restore="r", topic_id="t", task=source)
        pages[source] = last
    store.gets.clear()
    checks = [_check(target, pages) for target in range(targets)]
    found: dict[int, list[Stretch]] = {}
    for task in map_tasks(checks, store):
        for number, stretch in stretches(task):
            found.setdefault(number, []).append(stretch)
    assert {number: sorted(items) for number, items in found.items()} == {
        number: sorted(
            Stretch(at + source * 10, at + source * 10 + 10, source) for source in range(sources) for at in (0, 50)
        )
        for number in range(targets)
    }
    assert set(store.gets.values()) == {1}
    assert len(store.gets) == 2 * sources


def test_what_one_task_has_written_needs_no_map() -> None:
    """Nor does what no task has written."""
    store: Any = _Store()
    assert map_tasks([_check(0, {0: "page"}, shared=False), _check(1, {}), _check(2, {0: None})], store) == []
