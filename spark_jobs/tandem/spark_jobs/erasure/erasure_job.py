"""`tandem erase` on Spark: the plan, and all that is done on consent, with what is found of it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tandem.backup_avro.errors import ConfigError
from tandem.backup_avro.json_fields import UNLESS_NONE
from tandem.spark_jobs.erasure.erase_object import SearchedKeys
from tandem.spark_jobs.erasure.eraser import ErasedGeneration, Eraser, ErasureOutcome, eraser
from tandem.spark_jobs.erasure.erasure_plan import ErasurePlan
from tandem.spark_jobs.erasure.former_copies import FormerCopies, find_former_copies
from tandem.spark_jobs.erasure.live_keys import LiveKeys
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.retention.retention_job import RetentionJob
from tandem.spark_jobs.retention.retention_steps import RetentionAction, RetentionRules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What nobody can commit any more may hold records that were read before: it goes with an erasure.
_UNCOMMITTED: Final = (RetentionAction.ORPHANS, RetentionAction.LEFTOVERS, RetentionAction.UPLOADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureResult:
    """What became of an erasure. `clean`: the last search found nothing, and nothing waits.

    That is about the copies: what the live log may bring back is in `pending` of the report. `searched`: objects that
    chains and checkpoints name and that hold a part of the topic, all of which the proof is about.
    `orphans` are objects and uploads in no chain that were deleted, `uncommitted` those that stay because their writer
    may still commit them: a later run searches what was committed.
    """

    clean: bool
    remains: int
    generations: tuple[ErasedGeneration, ...]
    orphans: int
    uncommitted: int
    searched: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReport:
    """`tandem erase`. `live` is what the live topic had of the keys; None: it was not looked at, or does not exist.

    `pending`: which values in the live log can come back into a copy, and when, so that the erasure is not over however
    clean the copies are. `restored`: topics of the cluster that restores of the pair created, none of which is
    searched; there unless the cluster was not looked at.
    """

    root: str
    plan: ErasurePlan
    live: LiveKeys | None
    versions: FormerCopies
    pending: str | None = field(default=None, metadata=UNLESS_NONE)
    restored: tuple[str, ...] | None = field(default=None, metadata=UNLESS_NONE)
    result: ErasureResult | None = field(default=None, metadata=UNLESS_NONE)


class ErasureJob:
    """One erasure: first its plan, then, if there is consent, the rest."""

    def __init__(
        self,
        spark: SparkSession,
        address: StoreAddress,
        pair: str,
        topic: str,
        keys: SearchedKeys,
        *,
        told: Callable[[int, int], None] | None = None,
    ) -> None:
        self._spark = spark
        self._address = address
        self._pair = pair
        self._topic = topic
        self._eraser: Eraser = eraser(spark, address, pair, topic, keys, tell=told)

    def plan(self, live: LiveKeys | None, restored: tuple[str, ...] | None = None) -> ErasureReport:
        """Search everything; `live` and `restored` go into the report.

        ConfigError if no generation knows the topic; raises as `Eraser.plan`.
        """
        plan = self._eraser.plan()
        if not plan.generations and not plan.left:
            raise ConfigError(
                f"no generation of pair {self._pair} holds objects of {self._topic}",
                code="TDM-T012",
                remedy="`tandem list` and `tandem status` show what is backed up",
            )
        return ErasureReport(
            root=self._address.root,
            plan=plan,
            live=live,
            versions=self._versions(purge=False),
            pending=None if live is None else live.pending(self._topic),
            restored=restored,
        )

    def carry_out(
        self, report: ErasureReport, *, purge: bool, tell: Callable[[ErasedGeneration], None] = lambda _: None
    ) -> ErasureReport:
        """Erase what the plan found; with `purge`, former versions of deleted objects too. Raises as the plan does."""
        outcome = self._eraser.carry_out(report.plan, tell)
        orphans, uncommitted, failed = self._tidy_up()
        return replace(
            report,
            versions=self._versions(purge=purge),
            result=ErasureResult(
                clean=outcome.clean and not failed,
                remains=outcome.remains,
                generations=outcome.generations,
                orphans=orphans,
                uncommitted=uncommitted,
                searched=outcome.searched,
            ),
            plan=replace(report.plan, left=outcome.left, errors=_errors(outcome)),
        )

    def _versions(self, *, purge: bool) -> FormerCopies:
        store = self._address.open()
        return find_former_copies(store, self._pair, self._topic, needed=self._eraser.needed(), purge=purge)

    def _tidy_up(self) -> tuple[int, int, bool]:
        """Delete what nobody can commit. Return how many objects and uploads went and stay, and if a step failed."""
        job = RetentionJob(self._spark, self._address, self._pair, RetentionRules())
        plan = job.plan()
        steps = tuple(step for step in plan.steps if step.action in _UNCOMMITTED)
        outcomes = job.execute(replace(plan, steps=steps))
        stays = sum(kept.count for kept in plan.kept if kept.what in {"objects in no chain", "unfinished uploads"})
        return sum(one.count for one in outcomes), stays, any(one.failed for one in outcomes)


def _errors(outcome: ErasureOutcome) -> dict[str, str]:
    """Return what could not be searched at the end, and the generations that could not be rewritten."""
    found = dict(outcome.errors)
    for one in outcome.generations:
        found |= {name: why for name, why in one.errors.items() if name.startswith("generation ")}
    return found
