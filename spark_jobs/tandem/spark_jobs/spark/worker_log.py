"""The log of Spark's Python workers, in the driver's form, with secrets masked and text escaped as in the driver."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tandem.sink.process import log, safe_text
from tandem.sink.process.environment_secrets import hidden_of_environment

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class LoggedWork(Generic[_Result]):
    """Wraps a function for Spark's workers; a call first sets up the log of the calling process."""

    work: Callable[..., _Result]
    setup: log.LogSetup

    def __call__(self, *given: Any) -> _Result:  # noqa: ANN401 (whatever the function takes)
        """Set up the log of this process and call the function."""
        safe_text.register_secrets(hidden_of_environment(os.environ))
        log.follow(self.setup)
        return self.work(*given)


def logged(work: Callable[..., _Result]) -> LoggedWork[_Result]:
    """Return `work` for Spark's workers, with this process's log settings."""
    return LoggedWork(work, log.setup())
