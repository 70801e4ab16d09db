"""Whether what applications told is right, and the rows of the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from readers.applications import Application
from readers.expected import Moment
from readers.process import Answer, Outcome

FIRST, SECOND, ALL, MORE = 170, 330, 487, 574
#: The steps in which an application tells its state, and what has been written and read by then.
TOLD: Final[Mapping[str, Moment]] = {
    "source": Moment(last=ALL, unread=0),
    "restore": Moment(last=ALL, unread=ALL),
    "goes on": Moment(last=MORE, unread=ALL),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table. `excepted` says why the case need not hold; `faults` are what was not as it should be."""

    title: str
    version: str
    case: str
    source_s: float | None
    restore_s: float | None
    state_right: bool
    goes_on_right: bool
    excepted: str | None
    faults: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether the application came to its end on the restore."""
        return self.restore_s is not None

    @property
    def passed(self) -> bool:
        """Whether the row is as it should be. On the source each case has to hold, or it judges nothing."""
        return not self.faults or (self.excepted is not None and self.source_s is not None)


def judge(item: Application, outcomes: Mapping[str, Outcome], lost: str | None = None) -> Iterator[Row]:
    """Yield a row for each case, from the outcomes by step; `lost` says why there are none."""
    cases = dict.fromkeys(case for step in TOLD if step in outcomes for case in outcomes[step].answers)
    for case in cases or ["-"]:
        told = {step: outcomes[step].answers.get(case) if step in outcomes else None for step in TOLD}
        wrong = {step: why for step in TOLD if (why := _wrong(item, case, step, told[step], outcomes.get(step)))}
        source, restore = told["source"], told["restore"]
        yield Row(
            title=item.title,
            version=item.environment.versions(),
            case=item.setting or case,
            source_s=source.ready_s if source else None,
            restore_s=restore.ready_s if restore else None,
            state_right=not {"source", "restore"} & wrong.keys(),
            goes_on_right="goes on" not in wrong,
            excepted=item.exceptions.get(case),
            faults=(lost,) if lost else tuple(wrong.values()),
        )


def _wrong(item: Application, case: str, step: str, answer: Answer | None, outcome: Outcome | None) -> str | None:
    """Return what is wrong with an answer, None if nothing is."""
    if answer is None:
        reason = f" ({outcome.fault.splitlines()[0]})" if outcome and outcome.fault else ""
        return f"{step}: told nothing{reason}"
    if answer.ready_s is None:
        return f"{step}: waits for ever"
    wanted = item.expectation(case, TOLD[step])
    return None if answer.state == wanted else f"{step}: {_difference(answer.state, wanted)}"


def _difference(told: Any, wanted: Any) -> str:
    """Return in one line where two states differ."""
    if isinstance(told, dict) and isinstance(wanted, dict):
        keys = sorted(key for key in told.keys() | wanted.keys() if told.get(key) != wanted.get(key))
        first = keys[0]
        values = f"{_short(told.get(first))}, not {_short(wanted.get(first))}"
        return f"{len(keys)} of {len(wanted)} differ: {first} is {values}"
    if isinstance(told, list) and isinstance(wanted, list):
        return f"{len(told)} items, not {len(wanted)}: {_short(told)}, not {_short(wanted)}"
    return f"{_short(told)}, not {_short(wanted)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:28]} … {text[-28:]}"
