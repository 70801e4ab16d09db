"""A summary of each pair below one root, from the store alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tandem.backup_avro.errors import ConfigError, DamagedError, RefusedError
from tandem.backup_avro.selection.restorable_state import choose_generation
from tandem.controller.decision.pair_rules import active_of
from tandem.controller.decision.restore_points import RestorePoint, restore_points
from tandem.controller.local_state.remembered_heads import NOTHING_REMEMBERED, RememberedHeads
from tandem.controller.status.overview import WindowStatus, window_of
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import checkpoints
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms

_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSummary:
    """One pair. `generations` are those not wholly cleared, ascending; `newest` is the highest number ever claimed.

    `active` appends, by the chains, with generation `active_generation`. `window` is what a restore may ask for, None
    if nothing can be restored. How long the `restore_points` of generations stay is in the pair's configuration, which
    is not read. Counts are of what belongs to the backup now. `damaged` says what can't be read, `rolled_back` which
    entries this machine has read before and the store lacks.
    """

    pair: str
    generations: tuple[int, ...]
    newest: int
    active: str | None
    active_generation: int | None
    window: WindowStatus | None
    restore_points: tuple[RestorePoint, ...]
    topics: int
    records: int
    objects: int
    bytes: int
    damaged: tuple[str, ...]
    rolled_back: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """`tandem list`."""

    root: str
    pairs: tuple[PairSummary, ...]


def pairs(store: ObjectStore, remembered: RememberedHeads = NOTHING_REMEMBERED) -> tuple[PairSummary, ...]:
    """Return the pairs directly below the store's root, by name. Raises the store's errors.

    Their chains are compared with the heads in `remembered`, which then has the present ones.

    A folder is a pair's if a generation was claimed in it; nothing else is listed below it.
    """
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pairs") as pool:
        found = pool.map(lambda name: _summary(store, name, remembered), list(store.list_folders("")))
        return tuple(one for one in found if one is not None)


def _summary(store: ObjectStore, name: str, remembered: RememberedHeads) -> PairSummary | None:
    try:
        reader = ChainReader(store, name)
    except ConfigError:  # a foreign folder: no pair may have such a name
        return None
    damaged: tuple[str, ...] = ()
    recalled = remembered.recall(store.url, name)
    try:
        generations = reader.refresh(tolerant=True)
    except DamagedError as error:  # a newer release wrote it
        generations, damaged = [], (str(error),)
    if not reader.numbers:
        return None
    losses = recalled.compare(reader, generations)
    active = active_of(generations)
    try:
        base = choose_generation(generations)
    except RefusedError:
        base = None
    current = active or base
    now = now_ms(store)
    kept = checkpoints.list_checkpoints(store, name)
    return PairSummary(
        pair=name,
        generations=tuple(generation.number for generation in generations),
        newest=reader.newest,
        active=None if active is None else active.instance,
        active_generation=None if active is None else active.number,
        window=None if base is None else window_of(base, now=now),
        restore_points=restore_points(
            generations, now=now, policy=None, checkpoints=kept.checkpoints, unreadable=kept.damaged
        ),
        topics=0 if current is None else sum(not topic.removed for topic in current.topics.values()),
        records=sum(part.records for generation in generations for _, part in generation.live_parts()),
        objects=sum(len(generation.objects) for generation in generations),
        bytes=sum(item.bytes for generation in generations for item in generation.objects.values()),
        damaged=damaged + tuple(f"generation {number}: {why}" for number, why in sorted(reader.damaged.items())),
        rolled_back=tuple(loss.describe_loss() for loss in losses),
    )
