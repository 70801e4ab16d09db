"""The models with their bounds, and the guards that are taken away; docs/quality/model-check.md lists both.

Each model is small enough to be exhausted in at most ten minutes on one core; together they meet every kind of step in
every company that was thought to matter. `quick` are the same worlds with smaller bounds, for `make test`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from tandem.backup_avro.chain.entries import PartitionKey

from . import broken
from .packed import Shape
from .pair import Pair
from .scan import Ascending, Patient, Scan
from .search import Outcome, Search
from .world import ALIVE, UNBORN, Bounds

ONE = Shape(keys=(PartitionKey("t", 0),), names=("t",))
TWO = Shape(keys=(PartitionKey("t", 0), PartitionKey("t", 1)), names=("t", "t"))
TOPICS = Shape(keys=(PartitionKey("t", 0), PartitionKey("u", 0)), names=("t", "u"))
LIVES = Shape(keys=(PartitionKey("t#1", 0), PartitionKey("t#2", 0)), names=("t", "t"))

_SINGLE = Bounds(shape=ONE, ends=(1,), limits=(2,))
_DOUBLE = Bounds(shape=TWO, ends=(1, 0), limits=(1, 1))
_LIVES = Bounds(shape=LIVES, ends=(1, 0), limits=(1, 1), born=(ALIVE, UNBORN), mortal=(True, True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model: what it is about, its bounds in words, and how it is made; `quick` with bounds for `make test`."""

    name: str
    about: str
    bounds: str
    make: Callable[[], Any]
    quick: Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A guard that is taken away: where it is, the model that misses it, and how it is switched off."""

    name: str
    where: str
    make: Callable[[], Any]
    without: Callable[[], AbstractContextManager[None]] = broken.nothing


def _pair(bounds: Bounds, **more: Any) -> Callable[[], Pair]:
    return lambda: Pair(replace(bounds, **more))


CASES: tuple[Case, ...] = (
    Case(
        name="handover",
        about="turns: claim, scan, COMPLETE, drain, SEALED, CLEARING, CLEARED, with stale views throughout",
        bounds="2 instances, 2 partitions, 3 generations, 2 records",
        make=_pair(_DOUBLE, generations=3),
        quick=_pair(_DOUBLE),
    ),
    Case(
        name="late commits",
        about="what was fetched is committed later; fetches end before the head",
        bounds="2 instances, 2 partitions, 2 generations, 4 records",
        make=_pair(_DOUBLE, limits=(2, 2), split=True, pieces=True),
        quick=_pair(_SINGLE, split=True, pieces=True),
    ),
    Case(
        name="a look before a commit",
        about="COMPLETE goes by what others had before the last commits, while they read on, seal and are tainted",
        bounds="2 instances, 1 partition, 2 generations, 1 taint, 2 records",
        make=_pair(_SINGLE, taints=1, remembers=True),
        quick=_pair(_SINGLE, remembers=True),
    ),
    Case(
        name="first start",
        about="both instances begin with nothing; claims come late; one process is restarted",
        bounds="2 instances and a restart, 1 partition, 2 generations, 1 record",
        make=_pair(_SINGLE, limits=(1,), from_nothing=True, processes=(2, 1)),
        quick=_pair(_SINGLE, limits=(1,), from_nothing=True),
    ),
    Case(
        name="takeover",
        about="processes are restarted while their former lives go on; fencing by TAKEOVER",
        bounds="2 instances with 2 processes each, 1 partition, 2 generations, 2 takeovers of each, 2 records",
        make=_pair(_SINGLE, processes=(2, 2), takeovers=2),
        quick=_pair(_SINGLE, limits=(1,), processes=(2, 1), takeovers=2),
    ),
    Case(
        name="taint",
        about="gaps of the tail, in either generation, before and after COMPLETE",
        bounds="2 instances, 2 partitions, 2 generations, 2 taints, 4 records",
        make=_pair(_DOUBLE, ends=(1, 1), limits=(2, 2), taints=2),
        quick=_pair(_SINGLE, taints=1),
    ),
    Case(
        name="taint and a third generation",
        about="a generation that was tainted is replaced, and the one before it still reads",
        bounds="2 instances, 1 partition, 3 generations, 2 taints, 2 records",
        make=_pair(_SINGLE, generations=3, taints=2),
        quick=_pair(_SINGLE, taints=2),
    ),
    Case(
        name="restore",
        about="somebody plans, pins, looks again and reads while generations are cleared, perhaps by stale processes",
        bounds="2 instances and a restart, 1 partition, 2 generations, 1 restore, 2 records",
        make=_pair(_SINGLE, processes=(2, 1), restores=1),
        quick=_pair(_SINGLE, restores=1),
    ),
    Case(
        name="restore over two handovers",
        about="restores, one after the other, while two generations are cleared",
        bounds="2 instances, 1 partition, 3 generations, 2 restores, 1 record",
        make=_pair(_SINGLE, limits=(1,), generations=3, restores=2),
        quick=_pair(_SINGLE, limits=(1,), restores=2),
    ),
    Case(
        name="janitor",
        about="rewrites, deletion of what was replaced, clearing of what was abandoned, beside a restore",
        bounds="2 instances, 1 partition, 2 generations, 1 rewrite each, 1 restore, 2 records",
        make=_pair(_SINGLE, restores=1, janitor=True, rewrites=1),
        quick=_pair(_SINGLE, limits=(1,), restores=1, janitor=True, rewrites=1),
    ),
    Case(
        name="topic deleted",
        about="a topic is deleted at any moment; its last backup stays",
        bounds="2 instances, 2 topics, 2 generations, 4 records",
        make=_pair(Bounds(shape=TOPICS, ends=(1, 1), limits=(2, 2), mortal=(True, False)), listing=True),
        quick=_pair(Bounds(shape=TOPICS, ends=(1, 1), limits=(1, 1), mortal=(True, False))),
    ),
    Case(
        name="topic added",
        about="a topic is added at any moment, perhaps between the list of topics and COMPLETE",
        bounds="2 instances, 2 topics, 2 generations, 3 records",
        make=_pair(
            Bounds(shape=TOPICS, ends=(1, 0), limits=(2, 1), born=(ALIVE, UNBORN), mortal=(False, True)), listing=True
        ),
        quick=_pair(Bounds(shape=TOPICS, ends=(1, 0), limits=(1, 1), born=(ALIVE, UNBORN), mortal=(False, True))),
    ),
    Case(
        name="topic created again",
        about="a topic is deleted and created again, with other ends, at any moment",
        bounds="2 instances, 2 lives of a topic, 2 generations, 3 records",
        make=_pair(_LIVES, limits=(1, 2), listing=True),
        quick=_pair(_LIVES),
    ),
    Case(
        name="scan order",
        about="the base newest first beside a tail, against a cleaner that works at any moment",
        bounds="a log of up to 4 offsets, 2 keys, values and tombstones, 1 restart of the reader",
        make=lambda: Scan(length=4, restarts=1),
        quick=lambda: Scan(length=3),
    ),
)

REMOVALS: tuple[Removal, ...] = (
    Removal(
        name="claim order",
        where="store: put-if-absent for numbers",
        make=_pair(_SINGLE, limits=(1,), from_nothing=True, overwriting_claims=True),
    ),
    Removal(
        name="coverage by topic id",
        where="coverage.cover and Guarded.has compare names",
        make=_pair(_LIVES, judge_seals=False),
        without=broken.coverage_by_topic_name,
    ),
    Removal(
        name="what the cluster lost stays",
        where="coverage.clearing lets all of a sealed generation go",
        make=_pair(Bounds(shape=TOPICS, ends=(1, 1), limits=(1, 1), mortal=(True, False))),
        without=broken.clearing_of_what_the_cluster_lost,
    ),
    Removal(
        name="untainted coverage",
        where="coverage.successor and Generation.sound_offset look at no taint",
        make=_pair(_SINGLE, taints=1, judge_seals=False),
        without=broken.coverage_in_spite_of_taints,
    ),
    Removal(
        name="at head after the base",
        where="Generation.read_through is true when the base is done",
        make=_pair(_SINGLE),
        without=broken.complete_without_being_at_head,
    ),
    Removal(
        name="seal before clear",
        where="decide clears an Active that is covered, the fold lets it",
        make=_pair(_SINGLE),
        without=broken.clearing_without_seal,
    ),
    Removal(
        name="nothing is read on while sealing",
        where="decide starts a drained pipeline while SEALED is on its way",
        make=_pair(_SINGLE),
        without=broken.reading_on_while_sealing,
    ),
    Removal(
        name="put if absent in the chain",
        where="store: an append with a stale head overwrites",
        make=_pair(_SINGLE, processes=(2, 1), overwriting_entries=True),
    ),
    Removal(
        name="who lost a chain appends no more",
        where="store: a writer goes on from the head although another incarnation held the chain",
        make=_pair(_SINGLE, ends=(0,), limits=(1,), processes=(2, 1), takeovers=2, unfenced=True),
    ),
    Removal(
        name="CLEARING before pins before deletion",
        where="pins are looked at first, then CLEARING, then deletion",
        make=_pair(_SINGLE, restores=1, pins_before_clearing=True),
    ),
    Removal(
        name="a second look after the pins were put",
        where="tandem.spark_jobs.restore.job reads what it planned before",
        make=_pair(_SINGLE, limits=(1,), restores=1),
        without=broken.restore_without_a_second_look,
    ),
    Removal(
        name="the janitor looks at pins",
        where="tandem.spark_jobs.retention.retention_plan sees no pin",
        make=_pair(_SINGLE, limits=(1,), restores=1, janitor=True, rewrites=1),
        without=broken.janitor_without_pins,
    ),
    Removal(
        name="who is restarted takes over",
        where="decide sees no duty in what an earlier process of its name left",
        make=_pair(_SINGLE, limits=(1,), processes=(2, 1)),
        without=broken.nobody_takes_over,
    ),
    Removal(
        name="newest first",
        where="BaseScan plans from low to high",
        make=lambda: Scan(length=3, order=Ascending),
    ),
    Removal(
        name="a chunk in time",
        where="BaseScan counts a chunk however long it took",
        make=lambda: Scan(length=3, order=Patient),
    ),
)


def check(case: Case, *, quick: bool = False) -> Outcome:
    return Search((case.quick if quick else case.make)()).run()


def break_(removal: Removal) -> Outcome:
    """Search for a counterexample without a guard."""
    with removal.without():
        return Search(removal.make()).run()
