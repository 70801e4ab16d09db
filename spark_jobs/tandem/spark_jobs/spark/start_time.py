"""How long Spark took to start the last time on this machine, kept beside the archives of classes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tandem.sink.process.cache_folder import tandem_cache

_FILE: Final = "spark-start"
_MOST_BYTES: Final = 64
_MOST_S: Final = 86_400.0


def last_start_s(environment: Mapping[str, str]) -> float | None:
    """Return the seconds that the last start took; None if that is not known."""
    with suppress(OSError, ValueError):
        with _file(environment).open("rb") as stream:
            seconds = float(stream.read(_MOST_BYTES))
        return seconds if 0 <= seconds < _MOST_S else None
    return None


def remember_start(environment: Mapping[str, str], seconds: float) -> None:
    """Remember how long a start took. A folder that cannot be written to, as in an image, is no error."""
    file = _file(environment)
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{os.getpid()}")
        new.write_text(f"{seconds:.1f}\n", encoding="ascii")
        new.replace(file)


def starting_spark(environment: Mapping[str, str]) -> str:
    """Return the line for a command that starts Spark, with the seconds that it took the last time."""
    seconds = last_start_s(environment)
    return "starting Spark" if seconds is None else f"starting Spark ({max(round(seconds), 1)} s the last time)"


def _file(environment: Mapping[str, str]) -> Path:
    return tandem_cache(environment) / _FILE
