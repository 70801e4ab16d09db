"""`tandem drill`: a restore into scratch topics that are deleted afterwards, by the very code of `tandem restore`.

A drill exercises every step of a restore: the plan, the reading, the loading, the check, the config.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tandem.backup_avro.errors import RefusedError, TandemError
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.connector.connector_reader import ConnectorReader
from tandem.spark_jobs.restore import forget_restores
from tandem.spark_jobs.restore.job import RestoreRequest, restore
from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.prepare.prepare import PreparedRestore, prepare_restore
from tandem.spark_jobs.restore.report import RestoreListener, RestoreReport
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The suffix of scratch topics, followed by the drill's id; no pattern of a pair guards such names.
SUFFIX: Final = ".drill-"
_LEFT_OVER: Final = r".*\.drill-[0-9a-f]{8}"
_ID: Final = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    """The result of a drill. `deleted` are the deleted scratch topics; `left`: remaining scratch topic -> the reason.

    `phases`: name -> seconds. `report` is that of the restore.
    """

    report: RestoreReport
    deleted: tuple[str, ...]
    left: dict[str, str]
    phases: dict[str, float]

    @property
    def clean(self) -> bool:
        """Whether the topics held exactly the backup's records, under the recorded config."""
        return self.report.ended


def drill_options(options: RestoreOptions, drill_id: str) -> RestoreOptions:
    """Return the options of the drill's restore. ValueError unless `drill_id` is eight hex digits.

    Deletions by the recorded retention need no consent in scratch topics, which get no fillers, and no record of the
    restore is left.
    """
    if _ID.fullmatch(drill_id) is None:
        raise ValueError(f"{drill_id!r} is not eight hex digits")
    return replace(
        options,
        naming=TopicNaming(suffix=f"{SUFFIX}{drill_id}", shortens=True),
        consent=True,
        leaves_record=False,
        offsets=OffsetMode.DENSE,
    )


def prepare_drill(
    reader: ChainReader | ConnectorReader, target: TargetCluster, options: RestoreOptions
) -> PreparedRestore:
    """Plan the drill without changing anything. Raises as `prepare_restore`, and RefusedError if a topic exists."""
    prepared = prepare_restore(reader, target, options)
    if prepared.targets:
        raise RefusedError(
            f"topic {min(prepared.targets)} exists on the target already, and a drill deletes its topics",
            code="TDM-R007",
            remedy="run it again: the name is another one each time",
        )
    return prepared


def left_over(target: TargetCluster) -> list[str]:
    """Return the scratch topics of drills that were killed, or that run elsewhere."""
    return sorted(info.name for info in target.admin.topics((), [_LEFT_OVER]))


def drill(
    spark: SparkSession, request: RestoreRequest, *, keep: bool, tell: RestoreListener | None = None
) -> DrillResult:
    """Restore, check, and delete the scratch topics again unless `keep`, also when it fails.

    The options of the request are those of `drill_options`. Raises as `restore`; the topics are deleted then too.
    """
    told = tell or RestoreListener()
    target = request.target
    began = time.monotonic()
    names = [topic.target for topic in prepare_drill(request.reader, target, request.options).plan.topics]
    planned = time.monotonic()
    gone: list[str] = []
    left: dict[str, str] = {}
    with _deleting(target, [] if keep else names, gone, left, told) as took:
        heard = told if keep else _Scratch(told)
        report = restore(spark, request, tell=heard)
        rest = time.monotonic() - planned - report.load_seconds - report.check_seconds
    return DrillResult(
        report=report,
        deleted=tuple(gone),
        left=dict.fromkeys(names, "kept, as was asked for") if keep else left,
        phases={
            "plan": planned - began,
            "load": report.load_seconds,
            "check": report.check_seconds,
            "topics and config": rest,
            "delete": took[0] if took else 0.0,
        },
    )


class _Scratch(RestoreListener):
    """Passes on the progress of a drill's restore, but not `unfinished`: its topics are deleted, however it ends."""

    def __init__(self, told: RestoreListener) -> None:
        self._told = told

    def phase(self, text: str) -> None:
        """Pass on the text."""
        self._told.phase(text)

    def records(self, done: int, of: int) -> None:
        """Pass on the numbers."""
        self._told.records(done, of)


@contextmanager
def _deleting(
    target: TargetCluster, names: list[str], gone: list[str], left: dict[str, str], told: RestoreListener
) -> Iterator[list[float]]:
    """Delete the topics after the block, however it ends; failures are reported and put into `left`, not raised."""
    took: list[float] = []
    try:
        yield took
    finally:
        began = time.monotonic()
        try:
            there = {info.name for info in target.admin.topics(names)} if names else set()
        except TandemError as error:
            left.update(dict.fromkeys(names, str(error)))
            there = set()
        if there:
            told.phase(f"deleting {len(there)} scratch topic{'' if len(there) == 1 else 's'}")
        for name in sorted(there):
            try:
                target.admin.delete_topic(name)
            except TandemError as error:
                left[name] = str(error)
            else:
                gone.append(name)
        if names and not left:
            with suppress(TandemError):  # a later restore deletes the progress, after some days
                forget_restores.forget_unfinished(target, names)
        for name, why in left.items():
            told.phase(f"scratch topic {name} is left over, delete it: {why}")
        took.append(time.monotonic() - began)
