"""Read the history of a pair in an instance for its status page: a little at a time, beside its work."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.controller.history.store_history import GradualHistory, PastEvents
from tandem.controller.history.turns import Turn, turn_of
from tandem.controller.watch.store_watch import StoreView
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader

#: Cleared generations on the time line (TURNS), and generations in the history (GENERATIONS).
TURNS: Final = 6
GENERATIONS: Final = 12
_ENTRIES = 32
_BUDGET_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundHistoryView:
    """The history read so far. `turns` are those of wholly cleared generations, ascending.

    `unread` has the generations whose chain is not read to its end, with the number of entries left; None if unknown.
    """

    turns: tuple[Turn, ...] = ()
    past_events: PastEvents
    unread: Mapping[int, int | None]


class BackgroundHistory:
    """Reads a little at each step: the turn of one cleared generation from its last SNAPSHOT on, else past events."""

    def __init__(self, store: ObjectStore, pair: str, view: Callable[[], StoreView | None]) -> None:
        self._reader = ChainReader(store, pair, ended=True)
        self._view = view
        self._turns: dict[int, Turn | None] = {}
        self._past_events = GradualHistory(store, pair, generations=GENERATIONS)

    def step(self) -> BackgroundHistoryView:
        """Read a little more; return all that was read so far. Raises the store's errors."""
        view = self._view()
        if view is not None and not self._read_a_turn(view):
            heads = {g.number: g.seq for g in view.generations}
            until = time.monotonic() + _BUDGET_S
            while self._past_events.read_on(heads, view.numbers, entries=_ENTRIES) and time.monotonic() < until:
                pass
        turns = [turn for _, turn in sorted(self._turns.items()) if turn is not None]
        return BackgroundHistoryView(
            turns=tuple(turns[-TURNS:]), past_events=self._past_events.past_events, unread=self._past_events.unread
        )

    def _read_a_turn(self, view: StoreView) -> bool:
        live = {g.number for g in view.generations} | view.damaged.keys()
        over = [number for number in view.numbers if number not in live][-TURNS:]
        self._turns = {number: turn for number, turn in self._turns.items() if number in over}
        for number in reversed(over):
            if number not in self._turns:
                self._turns[number] = past_turn(self._reader, number)
                return True
        return False


def past_turn(reader: ChainReader, number: int) -> Turn | None:
    """Return the turn of a cleared generation; None if it was never opened or can't be read."""
    try:
        generation = reader.load(number)
    except (DamagedError, ConfigError):
        return None
    return turn_of(generation) if generation.seq else None
