"""What a state of the model consists of, and the bounds that keep it finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from .packed import Gen, Part, Shape

UNBORN, ALIVE, GONE = range(3)
INSTANCES = ("a", "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How large a model is, and which guards of the store or of the order of steps are taken away.

    `ends` and `limits` are the logs' first and last ends; `born` says which topics exist at first, `mortal` which ones
    come and go. `processes` is how many there may be of each instance. `listing`: topics are listed in a later step
    than the chains are read. `split`: what was fetched is committed in a later step. `pieces`: a fetch may end before
    the head. `remembers`: COMPLETE may go by what others had at an earlier look, and commits take place in between.
    Without `judge_seals` only loss counts as a broken promise.
    """

    shape: Shape
    ends: tuple[int, ...]
    limits: tuple[int, ...]
    born: tuple[int, ...] = ()
    mortal: tuple[bool, ...] = ()
    generations: int = 2
    processes: tuple[int, int] = (1, 1)
    takeovers: int = 1
    taints: int = 0
    restores: int = 0
    rewrites: int = 0
    janitor: bool = False
    from_nothing: bool = False
    listing: bool = False
    split: bool = False
    pieces: bool = False
    remembers: bool = False
    overwriting_claims: bool = False
    overwriting_entries: bool = False
    pins_before_clearing: bool = False
    unfenced: bool = False
    judge_seals: bool = True


class Run(NamedTuple):
    """A pipeline; `draft` is what it fetched and has not committed, by partition.

    `view` is its writer's picture of the chain: how often it had been taken over.
    """

    view: int
    draining: bool = False
    drained: bool = False
    draft: tuple[Part | None, ...] = ()


class Task(NamedTuple):
    """Slow work under way: the action's name, the generation, the step it is at, and what it found or read before.

    `view` is as for a pipeline: the writer is the one that was there when the work began.
    """

    name: str
    number: int
    step: str
    keys: int = 0
    view: int = 0
    read: tuple[Gen | None, ...] = ()


class Proc(NamedTuple):
    """One process. `views` are its pictures of the chains that it held ever, None for others.

    Where put-if-absent was taken away they are all that its writers know, else only whether there is one.
    """

    inc: str
    views: tuple[Gen | bool | None, ...]
    runs: tuple[Run | None, ...]
    tasks: tuple[Task, ...] = ()

    @property
    def me(self) -> str:
        return self.inc[0]


Place = tuple[int, int, int]
"""A partition's objects: generation, partition, version."""


class Restore(NamedTuple):
    """Somebody who restores: pins on `basis` are in the store once `step` is past `planned`.

    `objects` is what is read, `uses` the (generation, partition) pairs that it belongs to.
    """

    step: str
    objects: frozenset[Place]
    uses: frozenset[tuple[int, int]]
    basis: frozenset[int]

    def pins(self, number: int) -> bool:
        """Whether a generation is pinned."""
        return self.step != "planned" and number in self.basis


class Chore(NamedTuple):
    """What the janitor is about to do: `delete` these objects; or `append`, `look`, `delete` and end a clearing."""

    step: str
    number: int
    objects: frozenset[Place] = frozenset()


class World(NamedTuple):
    """One state. `deleted[g][k]` has a bit for each version of that partition's objects which the store lost.

    `confirmed` is, per partition, the highest sound offset that a COMPLETE generation ever held.
    """

    ends: tuple[int, ...]
    life: tuple[int, ...]
    gens: tuple[Gen | None, ...]
    deleted: tuple[tuple[int, ...], ...]
    procs: tuple[Proc, ...]
    spawned: tuple[int, int]
    confirmed: tuple[int, ...]
    taints: int = 0
    restores: int = 0
    restore: Restore | None = None
    chore: Chore | None = None


def with_(items: tuple[Any, ...], n: int, item: object) -> tuple[Any, ...]:
    """Return a tuple with another item at `n`."""
    return (*items[:n], item, *items[n + 1 :])
