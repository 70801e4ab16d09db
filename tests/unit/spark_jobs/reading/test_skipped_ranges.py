"""Jobs that read a topic skip a range only where the leader's own index names no record in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self, cast

import pytest
from support.records.strategies import PARTITION, TOPIC, batch

from tandem.backup_avro.errors import TimedOutError, TransientError
from tandem.backup_avro.record.current import Record
from tandem.sink.kafka.events import Evidence, Fetched
from tandem.sink.transcode import content_hash
from tandem.spark_jobs.reading.live_log import LiveLog
from tandem.spark_jobs.restore.check import check_partition
from tandem.spark_jobs.restore.check.check_partition import CheckTask, ExpectedRecords
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress

END = 3
RECORDS = [Record(topic=TOPIC, partition=PARTITION, offset=offset, timestamp=0, key=b"k") for offset in range(END)]


@dataclass
class Log:
    """A partition of three records, of which the first `withheld` answers bring none, with evidence that none is left.

    `named` is what the leader's index names: an offset, None for no answer, an error.
    """

    withheld: float
    named: int | Exception | None
    at: int = -1
    asked: int = 0
    read_committed: list[bool] = field(default_factory=list)

    def __call__(self, _: object, *, read_committed: bool) -> Self:
        """Be the fetcher of a job."""
        self.read_committed.append(read_committed)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def assign(self, _: object, offset: int, **__: object) -> None:
        """Begin there."""
        self.at = offset

    advance = assign

    def start_offsets(self, places: list[Any]) -> dict[Any, tuple[int, int]]:
        """Return the log's start."""
        return dict.fromkeys(places, (0, 0))

    def end_offsets(self, places: list[Any]) -> dict[Any, tuple[int, int]]:
        """Return the log's end."""
        return dict.fromkeys(places, (END, 0))

    def named_records(self, places: list[Any]) -> dict[Any, int]:
        """Return what the index names."""
        if isinstance(self.named, Exception):
            raise self.named
        return {} if self.named is None else dict.fromkeys(places, self.named)

    def poll(self, _: float) -> list[Fetched]:
        """Return the next answer."""
        self.asked += 1
        empty = self.asked <= self.withheld
        return [
            Fetched(
                topic=TOPIC,
                partition=PARTITION,
                fetch_offset=self.at,
                records=b"" if empty else b"".join(batch([record]) for record in RECORDS),
                high_watermark=END,
                last_stable_offset=END,
                log_start_offset=0,
                end_offset=END,
                aborted=(),
                leader_id=1,
                leader_epoch=0,
                received_at=0.0,
                evidence=Evidence(answers=6, since=0.0, until=3.0) if empty else None,
            )
        ]


def verified(log: Log, *, stall_s: float = 60.0) -> int:
    """How many records `tandem verify` reads of a topic."""
    live = LiveLog(cast("Any", log), (TOPIC, PARTITION), topic_id="id", read_committed=True, stall_s=stall_s)
    found = sum(segment.records for segment in live.below(END))
    assert live.at == END
    return found


def checked(log: Log, monkeypatch: pytest.MonkeyPatch, *, stall_s: float = 60.0) -> int:
    """How many records the check of a restore reads of its target."""
    monkeypatch.setattr(check_partition, "RawFetcher", log)
    expected = ExpectedRecords(what="t-0", records=END, hash=content_hash.START.hex(), first=0, last=END - 1, page=None)
    task = CheckTask(
        target=TOPIC,
        target_topic_id="id",
        partition=PARTITION,
        start=0,
        end=END,
        expected=(expected,),
        shared=False,
        among_others=False,
        cluster=ClusterAddress(props={}),
        stall_seconds=stall_s,
    )
    [found] = check_partition.check_partition(task)
    return found.records


@pytest.mark.parametrize("named", [2, 0, None, TransientError("no broker answers", code="TDM-X001")])
def test_what_the_leader_names_is_waited_for(monkeypatch: pytest.MonkeyPatch, named: int | Exception | None) -> None:
    """As it is where the leader does not say: verify would call the records lost, the check would call them missing."""
    assert verified(Log(withheld=3, named=named)) == END
    assert checked(Log(withheld=3, named=named), monkeypatch) == END


@pytest.mark.parametrize("named", [-1, END])
def test_what_the_leader_does_not_name_is_skipped(monkeypatch: pytest.MonkeyPatch, named: int) -> None:
    """Compaction has left nothing there; a record at the end came after the answer."""
    assert verified(Log(withheld=9, named=named)) == 0
    assert checked(Log(withheld=9, named=named), monkeypatch) == 0


@pytest.mark.parametrize(("named", "why"), [(1, "names the record at offset 1"), (None, "does not say whether")])
def test_what_never_comes_ends_the_job_by_name(monkeypatch: pytest.MonkeyPatch, named: int | None, why: str) -> None:
    """After the time for which a job waits for any record."""
    said = f"could be read to offset 0 only, its end is 3: nothing comes of offsets 0 to 3, .* index {why}"
    for read in (lambda log: verified(log, stall_s=-1.0), lambda log: checked(log, monkeypatch, stall_s=-1.0)):
        with pytest.raises(TimedOutError, match=said) as failed:
            read(Log(withheld=9, named=named))
        assert "withholds records" in (failed.value.remedy or "")
