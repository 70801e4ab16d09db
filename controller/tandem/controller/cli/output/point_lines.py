"""The restore points of a pair as rows of a table, for `tandem status` and `tandem list`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from tandem.controller.cli.output import output

if TYPE_CHECKING:
    from tandem.controller.decision.restore_points import RestorePoint

POINT_COLUMNS: Final = ("restore point", "from", "to", "kept until", "command")
POINT_EXTRA: Final = ("kept until",)


def point_rows(points: Iterable[RestorePoint]) -> Iterator[tuple[object, ...]]:
    """Yield one row for each restore point; one that can't be restored has the reason in place of the command."""
    for one in points:
        alone = one.start == one.end
        yield (
            one.kind.value if one.kind.value == "newest" else f"{one.kind.value} {one.name}",
            None if alone else output.at(one.start),
            output.at(one.end),
            _kept(one),
            one.command or f"none: {one.why_not}",
        )


def _kept(one: RestorePoint) -> str | None:
    if one.kept_until is None:
        return one.kept_by
    if one.kept_by is None or one.kept_by.startswith("the turn"):
        return one.kept_by or output.at(one.kept_until)
    return f"{output.at(one.kept_until)} ({one.kept_by})"
