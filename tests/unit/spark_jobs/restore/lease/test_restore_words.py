"""What is said of a plan can be read, and rests on nothing that may go, wherever whoever says it is killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from support.restores.records import plan_state

from tandem.spark_jobs.restore.lease import lease_record
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.task_progress import PlanPhase, PlanState, RestoreProgress

_FIRST = plan_state(
    plan="abc", state=PlanPhase.BEGUN, targets={f"topic-{number:03}": "" for number in range(40)}, sources={"id-1": 1}
)
_SECOND = replace(_FIRST, state=PlanPhase.LOADING)
_SMALL = replace(_FIRST, state=PlanPhase.FINISHED, targets={"t": "id"})


class KilledError(Exception):
    """The process ends here."""


@dataclass
class _Written:
    """A record of the first partition, and the transaction that it belongs to."""

    key: str
    value: bytes | None
    transaction: int


@dataclass
class Log:
    """The first partition of the progress topic, and in one the cluster, and a producer. Killed after `steps` steps."""

    records: list[_Written] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)
    steps: int = 1_000
    begun: int = 0

    @property
    def props(self) -> Log:
        """How it is reached."""
        return self

    def _step(self) -> None:
        if self.steps == 0:
            raise KilledError
        self.steps -= 1

    def know(self, topic: str) -> None:
        """Which partitions the topic has."""
        assert topic == marks.TOPIC

    def begin(self) -> None:
        assert self.begun in {0, *self.committed}
        self.begun += 1

    def send(self, topic: str, partition: int, *, key: bytes, value: bytes | None) -> None:
        assert (topic, partition) == (marks.TOPIC, marks.PLANS_PARTITION)
        self._step()
        self.records.append(_Written(key.decode(), value, self.begun))

    def commit(self) -> None:
        self._step()
        self.committed.add(self.begun)

    def plans(self) -> RestoreProgress:
        """All that can be read."""
        return _read(self.records)

    def cleaned(self) -> Iterator[list[_Written]]:
        """What is left when the cleaner has come to each offset: of what is before it, the last that was committed."""
        for closed in range(len(self.records) + 1):
            kept = [item for item in self.records[:closed] if item.transaction in self.committed]
            last = {item.key: item for item in kept}
            yield [item for item in kept if last[item.key] is item] + self.records[closed:]


def _read(records: list[_Written]) -> RestoreProgress:
    progress = RestoreProgress()
    for item in records:
        progress.take(item.key, item.value)
    progress.put_together()
    return progress


@pytest.fixture(autouse=True)
def _in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of any size lie in parts, but for the smallest."""
    monkeypatch.setattr(marks, "_RECORD_BYTES", 300)
    assert len(marks.records_of(_FIRST)) > 3
    assert len(marks.records_of(_SMALL)) == 1
    monkeypatch.setattr(lease_record, "fence", lambda log, _, then: then(log))


def _swap(log: Log, before: PlanState | None, word: PlanState | None) -> None:
    if word is not None:
        lease_record.write_phase(log, before, word)  # type: ignore[arg-type]  # a double
    elif before is not None:
        lease_record.forget_plan(log, before)  # type: ignore[arg-type]  # a double


@pytest.mark.parametrize("before", [None, _FIRST, _SMALL])
@pytest.mark.parametrize("word", [_SECOND, _SMALL, None])
def test_wherever_it_is_killed(before: PlanState | None, word: PlanState | None) -> None:
    """One of the two words can be read, then and when the cleaner has come; and it can be gone on with."""
    steps = 0
    while True:
        log = Log()
        _swap(log, None, before)
        at = len(log.records)
        log.steps = steps
        try:
            _swap(log, before, word)
        except KilledError:
            pass
        else:
            break
        for end in range(at, len(log.records) + 1):
            assert _read(log.records[:end]).plans.get("abc") in [before, word], "there is a reader at each offset"
        for left in log.cleaned():
            now = _read(left).plans.get("abc")
            assert now in [before, word], f"killed at step {steps}"
            resumed = Log(records=list(left))
            _swap(resumed, now, replace(_SECOND, run="run-2"))
            there = resumed.plans()
            assert there.plans["abc"].run == "run-2"
            assert len(there.parts) == len(marks.records_of(there.plans["abc"])) - 1, "nothing else is left"
        steps += 1
    there = log.plans()
    assert there.plans.get("abc") == word
    assert len(there.parts) == (len(marks.records_of(word)) - 1 if word else 0)
