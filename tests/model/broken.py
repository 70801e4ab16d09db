"""Guards taken away one at a time, to show that each is needed and that the models can tell.

A guard of the store or an order of steps is switched off in a model's bounds; a production function is replaced while
the search runs. Nothing is edited.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tandem.backup_avro.chain import generation as fold
from tandem.backup_avro.chain.entries import Clearing, Entry, EntryKind, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection import coverage
from tandem.backup_avro.selection.coverage import Cover, GuardedPartitions
from tandem.controller.decision import decide
from tandem.controller.decision.decide import Action, Clear, Reason
from tandem.controller.decision.observation import Observation, Policy
from tandem.spark_jobs.restore.prepare import prepare
from tandem.spark_jobs.retention import retention_plan


def _name(key: PartitionKey) -> str:
    return key.topic_id.partition("#")[0]


@contextmanager
def coverage_by_topic_name() -> Iterator[None]:
    """A recreated topic counts as the old one: what is compared is the name."""
    by_id = coverage.cover

    def cover(newer: Generation, older: Generation, key: PartitionKey) -> Cover:
        namesakes = [of for of in newer.positions if (_name(of), of.partition) == (_name(key), key.partition)]
        if key not in newer.positions and namesakes:
            last = max(namesakes)
            newer = replace(
                newer,
                positions={**newer.positions, key: newer.positions[last]},
                positions_seq={**newer.positions_seq, key: newer.positions_seq[last]},
            )
        return by_id(newer, older, key)

    def has(self: GuardedPartitions, key: PartitionKey) -> bool:
        return any(name == _name(key) and key.partition < count for name, count in self.topics.values())

    with patch.object(coverage, "cover", cover), patch.object(GuardedPartitions, "has", has):
        yield


@contextmanager
def coverage_in_spite_of_taints() -> Iterator[None]:
    """A tainted generation covers as far as its position, and may succeed another."""

    def sound_offset(self: Generation, key: PartitionKey) -> int:
        return self.positions[key].offset

    def successor(older: Generation, generations: tuple[Generation, ...]) -> Generation | None:
        newer = [g for g in generations if g.number > older.number and g.complete and g.clearing is None]
        return max((g for g in newer if g.cleared is None), key=lambda g: g.number, default=None)

    with (
        patch.object(Generation, "sound_offset", sound_offset),
        patch.object(coverage, "successor", successor),
    ):
        yield


@contextmanager
def complete_without_being_at_head() -> Iterator[None]:
    """A base that is done is enough; the tail need not have been at head after that."""

    def read_through(self: Generation, key: PartitionKey) -> bool:
        position = self.positions.get(key)
        return position is not None and position.base.complete

    with patch.object(Generation, "read_through", read_through):
        yield


@contextmanager
def clearing_without_seal() -> Iterator[None]:
    """What is covered is cleared at once, while its owner may still append."""
    duty, check = decide._duty_of_active, fold._check_order

    def clears_at_once(generation: Generation, seen: Observation, policy: Policy) -> list[Action]:
        goes = None if seen.guarded is None else coverage.clearing(generation, seen.generations, seen.guarded)
        if goes is not None:
            return [Clear(generation=generation.number, clearing=goes, reason=Reason.COVERED)]
        return duty(generation, seen, policy)

    def allowed(state: Generation, entry: Entry) -> str | None:
        if entry.kind is EntryKind.CLEARING and state.complete and not state.sealed:
            return None
        return check(state, entry)

    with patch.object(decide, "_duty_of_active", clears_at_once), patch.object(fold, "_check_order", allowed):
        yield


@contextmanager
def reading_on_while_sealing() -> Iterator[None]:
    """A pipeline that was drained is started again although SEALED is on its way."""
    duty = decide._duty_of_active

    def reads_on(generation: Generation, seen: Observation, policy: Policy) -> list[Action]:
        return duty(generation, replace(seen, tasks=frozenset()), policy)

    with patch.object(decide, "_duty_of_active", reads_on):
        yield


@contextmanager
def clearing_of_what_the_cluster_lost() -> Iterator[None]:
    """What no longer exists needs no cover: nothing of it stays."""
    keeping = coverage.clearing

    def clearing(older: Generation, *facts: Any) -> Clearing | None:
        found = keeping(older, *facts)
        return found and Clearing(goes=tuple(sorted(older.positions)), stays={})

    with patch.object(coverage, "clearing", clearing):
        yield


@contextmanager
def restore_without_a_second_look() -> Iterator[None]:
    """A restore that put its pins reads what it planned before, without reading the chains again."""
    with patch.object(prepare, "refuse_if_clearing", lambda *_: None):
        yield


@contextmanager
def janitor_without_pins() -> Iterator[None]:
    """The janitor deletes what was replaced whoever reads it."""
    with patch.object(retention_plan, "_pinned", lambda *_: None):
        yield


@contextmanager
def nobody_takes_over() -> Iterator[None]:
    """A process that is started again leaves alone what an earlier one of its name left."""
    with patch.object(decide, "_has_duty", lambda *_: False):
        yield


@contextmanager
def nothing() -> Iterator[None]:
    """Every production function is as it is."""
    yield
