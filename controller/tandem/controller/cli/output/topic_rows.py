"""Tables of partitions: a row for each topic with the sums of its partitions, or a row for each partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tandem.controller.cli.output.output import Table


class _OfPartition(Protocol):
    @property
    def partition(self) -> int: ...


_Item = TypeVar("_Item", bound=_OfPartition)


def grouped(
    items: Iterable[_Item], names: Callable[[_Item], tuple[object, ...]]
) -> list[tuple[tuple[object, ...], list[_Item]]]:
    """Return partitions by their names, each group where its first one comes."""
    found: dict[tuple[object, ...], list[_Item]] = {}
    for item in items:
        found.setdefault(names(item), []).append(item)
    return list(found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRows(Generic[_Item]):
    """Partitions in groups, mostly topics, and what a table shows of them.

    A group is the cells under `names`, such as the topic, and its partitions. `sums` returns the cells under `figures`
    for some partitions of one group or of all; `extra` is as in Table.
    """

    names: Sequence[str]
    groups: Sequence[tuple[tuple[object, ...], Sequence[_Item]]]
    figures: Sequence[str]
    sums: Callable[[Sequence[_Item]], tuple[object, ...]]
    title: str | None = None
    left: frozenset[str] = frozenset()
    extra: Sequence[str] = ()

    def table(self, *, wide: bool) -> Table:
        """Return a row for each group and, for several, one for all of them; with `wide` one for each partition."""
        if wide:
            rows = [(*names, item.partition, *self.sums([item])) for names, items in self.groups for item in items]
        else:
            rows = [(*names, len(items), *self.sums(items)) for names, items in self.groups]
            if len(rows) > 1:
                every = [item for _, items in self.groups for item in items]
                blank = [""] * (len(self.names) - 1)
                rows.append((f"{len(rows)} in all", *blank, len(every), *self.sums(every)))
        number = "partition" if wide else "partitions"
        return Table(
            title=self.title,
            columns=(*self.names, number, *self.figures),
            rows=rows,
            right=frozenset({number, *self.figures}) - self.left,
            extra=self.extra,
        )
