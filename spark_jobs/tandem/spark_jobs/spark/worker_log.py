"""The log of Spark's Python workers, in the driver's form: masked and escaped as its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tandem.sink.process import log
from tandem.sink.process.environment_secrets import hidden_of_environment

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class LoggedWork(Generic[_Result]):
    """A function for Spark's workers, which sets up the log of the process that calls it."""

    work: Callable[..., _Result]
    setup: log.Setup

    def __call__(self, *given: Any) -> _Result:  # noqa: ANN401 (whatever the function takes)
        """Call it."""
        log.register_secrets(hidden_of_environment(os.environ))
        log.follow(self.setup)
        return self.work(*given)


def logged(work: Callable[..., _Result]) -> LoggedWork[_Result]:
    """Return `work` for Spark's workers, with the set-up of this process's log."""
    return LoggedWork(work, log.setup())
