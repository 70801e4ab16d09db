"""What production `decide` does in a small world: the same view under every mood of clocks and messages.

Clocks, heartbeats and requests may say anything at any time, so no state holds them. Instead a view is decided on under
each mood, and everything that some mood asks for may happen.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from tandem.backup_avro.documents.pause import Pause
from tandem.controller.decision.decide import Action, Seal, decide
from tandem.controller.decision.observation import Activation, Observation, Peer, PipelineState, Policy, Role

from .packed import Gen, Rules

_POLICY = Policy(
    first="a",
    rotation_interval_s=1000.0,
    liveness_timeout_s=60.0,
    peer_timeout_s=30.0,
    handover_timeout_s=20.0,
    heartbeat_s=5.0,
    flush_interval_s=10.0,
)
_PAUSE = Pause(number=1, pair="p", at=0, until=1 << 62, by="", reason="")
_START, _NOW, _MUCH_LATER = 0.0, 500.0, 1_000_000.0


class Lane(NamedTuple):
    """A pipeline of one process: the generation's index, whether it was told to stop, whether it has."""

    number: int
    draining: bool = False
    drained: bool = False


class Sight(NamedTuple):
    """What one process has before it when it decides; `tasks` are under way, `alive` says which partitions exist."""

    incarnation: str
    gens: tuple[Gen | None, ...]
    lanes: tuple[Lane, ...]
    tasks: frozenset[tuple[str, int]]
    alive: tuple[bool, ...]


class Decider:
    """Calls `decide`; the same question is asked once."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.actions = cache(self._actions)

    def _actions(self, sight: Sight) -> tuple[Action, ...]:
        """Return what any mood asks for.

        All is well; I was asked for a turn; nobody was heard for long, and what was to be sealed was refused
        besides; no brokers; and in a pause: nobody was heard for long, and a person asks in spite of it.
        """
        calm, late = self._observe(sight, late=False), self._observe(sight, late=True)
        refused = frozenset((Seal.__name__, lane.number + 1) for lane in sight.lanes) - late.tasks
        asked = (Activation(request_id="", target=calm.me, generation=calm.newest + 1, reason=""),)
        moods = (
            calm,
            replace(calm, activations=asked),
            late,
            replace(late, tasks=late.tasks | refused, resting=refused),
            replace(calm, guarded=None),
            replace(late, pause=_PAUSE),
            replace(calm, activations=(replace(asked[0], by_person=True, at=_PAUSE.at),), pause=_PAUSE),
        )
        found: dict[tuple[object, ...], Action] = {}
        for seen in moods:
            for action in decide(Role.PASSIVE, seen, _POLICY).actions:
                found.setdefault(_key(action), action)
        return tuple(found.values())

    def _observe(self, sight: Sight, *, late: bool) -> Observation:
        me = sight.incarnation[0]
        other = "b" if me == "a" else "a"
        newest = sum(gen is not None for gen in sight.gens)
        now = _MUCH_LATER if late else _NOW
        heard = None if late else now
        return Observation(
            now_mono=now,
            at=round(now * 1000),
            me=me,
            incarnation=sight.incarnation,
            started_mono=_START,
            listening_mono=_START,
            generations=self._rules.all(sight.gens),
            newest=newest,
            guarded=self._rules.shape.guarded(sight.alive) if any(sight.alive) else None,
            peer=Peer(instance=other, heard_mono=heard, progressed_mono=heard),
            pipelines={
                lane.number + 1: PipelineState(
                    started_mono=_START, draining=lane.draining, drained_mono=_NOW if lane.drained else None
                )
                for lane in sight.lanes
            },
            tasks=frozenset((name, number + 1) for name, number in sight.tasks),
            asked_mono={newest + 1: _START} if late else {},
        )


def _key(action: Action) -> tuple[object, ...]:
    return (type(action), getattr(action, "generation", None), getattr(action, "successor", None))
