"""A process whose clock is off: Python that runs in it first, for `Pair.start(prelude=...)`.

`time.time`, and all that `datetime` takes for now, differ from the real clock by so many seconds. Monotonic clocks and
those inside of librdkafka and OpenSSL stay: they are the same whatever a host takes for the time of day.
"""

from __future__ import annotations

from pathlib import Path


def skewed(seconds: int, *, while_there: Path | None = None) -> str:
    """Return the prelude of a process whose clock is `seconds` ahead; negative: behind.

    With `while_there` only as long as there is such a file: the clock steps when it comes and goes.
    """
    return f"""
import datetime, os, time
_time, _datetime, _file = time.time, datetime.datetime, {None if while_there is None else str(while_there)!r}
time.time = lambda: _time() + ({seconds} if _file is None or os.path.exists(_file) else 0)
time.time_ns = lambda: int(time.time() * 1e9)
class Skewed(_datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
    @classmethod
    def utcnow(cls):
        return cls.fromtimestamp(time.time(), datetime.timezone.utc).replace(tzinfo=None)
datetime.datetime = Skewed
"""
