"""Who else works on the store: somebody who restores, and a janitor.

Their steps mirror `spark_jobs.restore.prepare.prepare` and `spark_jobs.retention.retention_job`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.errors import RefusedError
from tandem.sink.store.chain.pins import Pin
from tandem.sink.store.contract.object_store import ObjectInfo
from tandem.spark_jobs.restore.prepare import prepare as production
from tandem.spark_jobs.retention.retention_plan import make_plan
from tandem.spark_jobs.retention.retention_steps import RetentionAction, StoreObservation
from tandem.spark_jobs.retention.retention_steps import RetentionRules as Limits

from .packed import OBJECT_BYTES, PAIR, Draft, Gen, Rules
from .world import Bounds, Chore, Place, Restore, World, with_

JANITOR = "janitor-1"
_LATE = 10**13
"""ms; every grace time is over, but see `Visitors.janitor`."""


class Visitors:
    """Their steps and what a restore may rely on."""

    def __init__(self, bounds: Bounds, rules: Rules) -> None:
        self._bounds = bounds
        self._rules = rules
        self._may_read = cache(self._ask)
        self._plan = cache(self._make_plan)

    # --- a restore ----------------------------------------------------------------------------------------------------

    def restore(self, world: World) -> Iterator[tuple[str, World]]:
        """A plan, then pins on what it rests on, then a second look, then reading; it may end anywhere."""
        restore = world.restore
        if restore is None:
            chosen = self._rules.selected(world.gens) if world.restores < self._bounds.restores else None
            if chosen is not None:
                label = f"a restore plans to read {_places(chosen[0])}"
                yield label, world._replace(restore=Restore("planned", *chosen), restores=world.restores + 1)
            return
        if restore.step == "planned":
            yield "the restore puts its pins", world._replace(restore=restore._replace(step="pinned"))
        elif restore.step == "pinned" and self._may_read(world.gens, restore.objects, restore.uses):
            label = "the restore sees nothing of it let go, and reads"
            yield label, world._replace(restore=restore._replace(step="reading"))
        if restore.step != "planned":
            yield "the restore removes its pins", world._replace(restore=None)

    def _ask(self, gens: tuple[Gen | None, ...], objects: frozenset[Place], uses: frozenset[tuple[int, int]]) -> bool:
        """Whether a restore goes on after its pins were put (`spark_jobs.restore.job`)."""
        states = self._rules.all(gens)
        keys = sorted({n for _, n in uses})
        items = [
            SimpleNamespace(
                key=self._rules.shape.keys[n],
                generations=tuple(number + 1 for number, m in sorted(uses) if m == n),
                slices=tuple(
                    SimpleNamespace(generation=place[0] + 1, item=self._rules.object_at(gens, place))
                    for place in sorted(objects)
                    if place[1] == n
                ),
            )
            for n in keys
        ]
        # A grace time lies between a REWRITE and the deletion; nothing that was replaced is gone so soon.
        store = SimpleNamespace(head=lambda key: key)
        reader = SimpleNamespace(refresh=lambda **_: list(states), store=store)
        plan = SimpleNamespace(topics=[SimpleNamespace(partitions=items)], append=False)
        try:
            production.refuse_if_clearing(cast("Any", reader), cast("Any", plan))
        except RefusedError:
            return False
        return True

    def broken(self, world: World) -> str | None:
        """Say what a restore that reads under its pins has lost."""
        restore = world.restore
        if restore is None or restore.step != "reading":
            return None
        lost = frozenset(place for place in restore.objects if world.deleted[place[0]][place[1]] >> place[2] & 1)
        return f"a pinned restore reads {_places(lost)}, which is deleted" if lost else None

    # --- the janitor --------------------------------------------------------------------------------------------------

    def janitor(self, world: World) -> Iterator[tuple[str, World]]:
        """Rewrite a partition's objects; look at the store and plan; carry out a deletion, or clear in small steps."""
        if not self._bounds.janitor:
            return
        if world.chore is not None:
            yield from self._carry_out(world, world.chore)
            return
        for number, gen in enumerate(world.gens):
            if gen is None or gen.damaged or not gen.holder:
                continue
            for n in range(len(gen.parts)):
                if gen.versions[n] >= self._bounds.rewrites or self._rules.object(number, gen, n) is None:
                    continue
                after = self._rules.fold(number, gen, Draft(EntryKind.REWRITE, JANITOR, keys=1 << n))
                if after is not None:
                    label = f"the janitor rewrites partition {n} of {number + 1}"
                    yield label, world._replace(gens=with_(world.gens, number, after))
        pinned = frozenset() if world.restore is None or world.restore.step == "planned" else world.restore.basis
        for chore in self._plan(world.gens, world.deleted, pinned):
            if world.restore is not None and world.restore.step == "planned" and chore.objects & world.restore.objects:
                continue  # nobody waits for the grace time, a day, between a plan and its pins
            label = f"the janitor plans to {chore.step} {_places(chore.objects)} of {chore.number + 1}"
            yield label, world._replace(chore=chore)

    def _carry_out(self, world: World, chore: Chore) -> Iterator[tuple[str, World]]:
        number, gen = chore.number, world.gens[chore.number]
        assert gen is not None
        held = sum(1 << n for n, part in enumerate(gen.parts) if part is not None)
        match chore.step:
            case "clear" if gen.clearing >= 0:
                yield f"the janitor goes on clearing {number + 1}", world._replace(chore=chore._replace(step="look"))
            case "clear":
                after = self._rules.fold(number, gen, Draft(EntryKind.CLEARING, JANITOR, keys=held))
                if after is None:
                    yield f"the janitor leaves {number + 1} alone", world._replace(chore=None)
                else:
                    world = world._replace(gens=with_(world.gens, number, after), chore=chore._replace(step="look"))
                    yield f"the janitor appends CLEARING to {number + 1}", world
            case "look":
                pinned = world.restore is not None and world.restore.pins(number)
                after_look = None if pinned else chore._replace(step="empty")
                yield f"the janitor sees {'a' if pinned else 'no'} pin", world._replace(chore=after_look)
            case _:
                yield from self._delete(world, chore, gen)

    def _delete(self, world: World, chore: Chore, gen: Gen) -> Iterator[tuple[str, World]]:
        number = chore.number
        deleted = world.deleted
        for _, n, version in chore.objects:
            mask = deleted[number][n] | 1 << version
            deleted = with_(deleted, number, with_(deleted[number], n, mask))
        label = f"the janitor deletes {_places(chore.objects)}"
        if chore.step == "empty":
            after = self._rules.fold(number, gen, Draft(EntryKind.CLEARED, JANITOR, keys=max(gen.clearing, 0)))
            gens = world.gens if after is None else with_(world.gens, number, after)
            yield f"{label}, CLEARED", world._replace(deleted=deleted, chore=None, gens=gens)
        else:
            yield label, world._replace(deleted=deleted, chore=None)

    def _make_plan(
        self, gens: tuple[Gen | None, ...], deleted: tuple[tuple[int, ...], ...], pinned: frozenset[int]
    ) -> tuple[Chore, ...]:
        """Ask `retention_plan.make_plan`, every grace time being over."""
        rules = self._rules
        modified = datetime.fromtimestamp(0, UTC)
        objects: dict[int, tuple[ObjectInfo, ...]] = {}
        for number, gen in enumerate(gens):
            if gen is None:
                continue
            prefix = layout.data_prefix(PAIR, gen.owner, number + 1)
            there = [
                (n, version)
                for n in range(len(gen.parts))
                for version in range(gen.versions[n] + 1)
                if rules.object(number, gen, n) is not None and not deleted[number][n] >> version & 1
            ]
            objects[number + 1] = tuple(
                ObjectInfo(key=f"{prefix}{n}/{version}", size=OBJECT_BYTES, modified=modified) for n, version in there
            )
        states = tuple(rules.thaw(n, gen) for n, gen in enumerate(gens) if gen is not None and not gen.damaged)
        pins = tuple(Pin(id=str(number), generation=number + 1, owner="restore", until=2 * _LATE) for number in pinned)
        plan = make_plan(StoreObservation(pair=PAIR, at=_LATE, states=states, objects=objects, pins=pins), Limits())
        chores = []
        for step in plan.steps:
            assert step.generation is not None
            number = step.generation - 1
            places = frozenset(rules.place(number, key) for key in step.keys)
            chores.append(Chore("clear" if step.action is RetentionAction.CLEAR else "delete", number, places))
        return tuple(chores)


def _places(objects: frozenset[Place]) -> str:
    return ", ".join(f"{number + 1}/{n}/{version}" for number, n, version in sorted(objects)) or "nothing"
