"""Derive a scope from Spark's filters. Pure: filters are recognised by the names of their classes.

Only recognised filters narrow the scope, and Spark applies every filter to the rows once more. So a scope may be too
wide, never too narrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tandem.spark_jobs.datasource.plan import EVERYTHING, FilterScope
from tandem.spark_jobs.state.read_options import ALL, MAX_MS, NumberRange

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EQUAL: Final = frozenset({"EqualTo", "EqualNullSafe"})
_ABOVE: Final = {"GreaterThan": 1, "GreaterThanOrEqual": 0}
_BELOW: Final = {"LessThan": 0, "LessThanOrEqual": 1}


def scope_of(filters: Iterable[Any]) -> FilterScope:
    """Return the intersection of the scopes of all filters (Spark joins them by AND)."""
    scope = EVERYTHING
    for item in filters:
        attribute: tuple[str, ...] = getattr(item, "attribute", ())
        if len(attribute) == 1:
            scope = _narrowed(scope, attribute[0], type(item).__name__, _literals(getattr(item, "value", None)))
    return scope


def _literals(value: Any) -> list[Any]:  # noqa: ANN401 - any literal of Spark's, or several
    return [item for item in (value if isinstance(value, (list, tuple)) else [value]) if item is not None]


def _narrowed(scope: FilterScope, column: str, kind: str, values: list[Any]) -> FilterScope:
    match column:
        case "topic" if kind in _EQUAL | {"In"} and values and all(isinstance(item, str) for item in values):
            names = frozenset(values)
            return replace(scope, topics=names if scope.topics is None else scope.topics & names)
        case "partition":
            return replace(scope, partitions=scope.partitions.within(_range(kind, values)))
        case "offset":
            return replace(scope, offsets=scope.offsets.within(_range(kind, values)))
        case "timestamp" if all(isinstance(item, datetime) and item.tzinfo is not None for item in values):
            micros = [(item - _EPOCH) // timedelta(microseconds=1) for item in values]
            return replace(scope, times=scope.times.within(_in_ms(_range(kind, micros))))
        case _:
            return scope


def _range(kind: str, values: list[Any]) -> NumberRange:
    """Return the range that a filter allows for an integer column."""
    if not values or not all(isinstance(item, int) for item in values):
        return ALL
    if kind in _EQUAL or kind == "In":
        return NumberRange(low=min(values), high=max(values) + 1)
    if kind in _ABOVE:
        return NumberRange(low=values[0] + _ABOVE[kind])
    if kind in _BELOW:
        return NumberRange(high=values[0] + _BELOW[kind])
    return ALL


def _in_ms(micros: NumberRange) -> NumberRange:
    """Convert a range of timestamps as Spark shows them (µs) to one of stored timestamps (ms).

    Spark is shown the nearest timestamp that it can represent, so a bound outside of that range says nothing about
    stored timestamps. A low bound below 0 is dropped too: it could not exclude the -1 of records without a timestamp.
    """
    low = None if micros.low is None else micros.low // 1000
    high = None if micros.high is None else -(-micros.high // 1000)
    return NumberRange(
        low=low if low is not None and 0 <= low < MAX_MS else None,
        high=high if high is not None and -MAX_MS < high <= MAX_MS else None,
    )
