"""What a restore tells while it runs, and its report at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.spark_jobs.restore.check.check_partition import CheckResult
from tandem.spark_jobs.restore.load.load import LoadResult
from tandem.spark_jobs.restore.plan.plan import RestorePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """One restored topic. `notes` are messages about settings that could not be kept or that need attention.

    `unset`: setting -> why the cluster refused it, for settings without which the restore is not finished.
    """

    source: str
    target: str
    partitions: tuple[LoadResult, ...]
    config: Mapping[str, str]
    notes: tuple[str, ...]
    unset: Mapping[str, str] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Records in the target."""
        return sum(item.records for item in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """The result of a restore. `mismatches` is empty if and only if the target holds exactly the backup's records.

    `id` names the restore: its record and its offset map lie in the store under it. `resumed` records were loaded by
    earlier runs.
    """

    id: str
    plan: RestorePlan
    topics: tuple[TopicReport, ...]
    mismatches: tuple[CheckResult, ...]
    resumed: int
    load_seconds: float
    check_seconds: float

    @property
    def records(self) -> int:
        """Records in all targets."""
        return sum(topic.records for topic in self.topics)

    @property
    def left_out(self) -> int:
        """Records that were read and not written: by the user's record changes, or for want of a key."""
        return sum(item.left_out for topic in self.topics for item in topic.partitions)

    def in_vain(self) -> list[str]:
        """Return a text for each option whose keys matched no record."""
        return self.plan.shape.in_vain(records=self.records, left_out=self.left_out)

    @property
    def ended(self) -> bool:
        """Whether the restore is finished: the target holds the backup's records under the requested config."""
        return not self.mismatches and not any(topic.unset for topic in self.topics)


class RestoreListener:
    """Receives the progress of a restore, for display. The base class ignores it."""

    def phase(self, text: str) -> None:
        """Receive the text of a step that begins."""

    def records(self, done: int, of: int) -> None:
        """Receive the number of committed records; `of` may be an upper bound."""

    def unfinished(self, plan: RestorePlan, *, wrong: bool = False) -> None:
        """Receive that the run ends and the restore is unfinished. `wrong`: the target differs from the backup."""
