"""The page of topics: a search over all topics of the generation that takes records, or one topic's partitions."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from urllib.parse import parse_qs

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.controller.history.describe import Holding, holdings
from tandem.controller.http.page.content import ROWS, Content, Partitions, margin_of, worst_partitions
from tandem.controller.status.overview import PositionStatus, sum_known

_LONGEST: Final = 249
"""The most characters that a topic's name has; a longer search finds nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One topic in one generation: sums over its partitions, and the least tombstone margin in seconds.

    `wrong` is the number of partitions that are tainted, or read too late. `lag` is None where it is not known.
    """

    topic: str
    partitions: int
    read_through: int
    lag: int | None
    held_back: int
    margin_s: float | None
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """The topics whose names contain `search`, worst first, or `chosen` with its partitions.

    `found` counts all that match, of which `rows` are at most fifty. `partition` is the only one that was asked for, as
    it was typed; `partitions` has no rows if there is none of that number.
    """

    pair: str
    at: datetime | None
    generation: int | None
    search: str
    found: int
    rows: tuple[TopicRow, ...]
    chosen: str | None = None
    partition: str = ""
    partitions: Partitions | None = None


def topic_page(shown: Content, query: str, generations: Iterable[Generation] = ()) -> TopicPage:
    """Return the page for a query: `q` is a part of a name, in whatever case, `topic` the whole name of one.

    `partition` is the number of one of that topic's partitions. If the shown generation is among `generations`, the
    page of a topic has what it holds of each partition.
    """
    asked = parse_qs(query[: 4 * _LONGEST], max_num_fields=8)
    search = asked.get("q", [""])[0].strip()
    chosen = asked.get("topic", [None])[0]
    partition = asked.get("partition", [""])[0].strip()
    active = shown.active
    positions: dict[str, list[PositionStatus]] = {}
    for one in () if active is None else active.positions:
        positions.setdefault(one.topic, []).append(one)
    matching = {name: its for name, its in positions.items() if search.casefold() in name.casefold()}
    rows = [_row(name, its) for name, its in matching.items()]
    listed = [one for one in positions.get(chosen or "", ()) if partition in {"", str(one.partition)}]
    return TopicPage(
        pair=shown.pair,
        at=None if shown.found is None else shown.found.at,
        generation=None if active is None else active.number,
        search=search,
        found=len(rows),
        rows=tuple(heapq.nsmallest(ROWS, rows, key=_worst_first)),
        chosen=chosen,
        partition=partition,
        partitions=(
            None
            if active is None or chosen not in positions
            else _with_holdings(worst_partitions(active.number, listed), listed, generations)
        ),
    )


def _with_holdings(
    found: Partitions, positions: Sequence[PositionStatus], generations: Iterable[Generation]
) -> Partitions:
    generation = next((one for one in generations if one.number == found.generation), None)
    if generation is None:
        return found
    wanted = {PartitionKey(one.topic_id, one.partition) for one in positions}
    parts = [(item, part) for item, part in generation.live_parts() if part.key in wanted]
    keys = [PartitionKey(row.position.topic_id, row.position.partition) for row in found.rows]
    listed = set(keys)
    held = holdings((one for one in parts if one[1].key in listed), lambda key: key)
    return replace(
        found,
        rows=tuple(replace(row, held=held.get(key, Holding())) for row, key in zip(found.rows, keys, strict=True)),
        total=holdings(parts, lambda _: True).get(True, Holding()),
    )


def _row(topic: str, positions: Sequence[PositionStatus]) -> TopicRow:
    margins = [one.tombstone_margin_s for one in positions if one.tombstone_margin_s is not None]
    return TopicRow(
        topic=topic,
        partitions=len(positions),
        read_through=sum(one.complete for one in positions),
        lag=sum_known(one.lag for one in positions),
        held_back=sum(one.held_back for one in positions),
        margin_s=min(margins, default=None),
        wrong=sum(one.tainted_from is not None or margin_of(one) <= 0 for one in positions),
    )


def _worst_first(one: TopicRow) -> tuple[object, ...]:
    unread = one.partitions - one.read_through
    return (
        -one.wrong,
        not one.held_back,
        -unread,
        -(one.lag or 0),
        math.inf if one.margin_s is None else one.margin_s,
        one.topic,
    )
