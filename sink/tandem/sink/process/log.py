"""Logs one line per event on stderr, as JSON or for a terminal; vendors' stdlib logs get the same form.

Secrets are masked twice: by the name of a key, and by value, for every secret registered before (`safe_text`). The
state is that of the process: the fields of every line (pair, instance, incarnation), and what was configured.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from tandem.backup_avro.errors import TandemError
from tandem.sink.process import safe_text, stderr_lines
from tandem.sink.process.safe_text import MASK, printable, redact

if TYPE_CHECKING:
    import stamina

_OURS: Final = ("tandem",)
_THEIRS: Final = ("kafka", "stamina")  # whose levels are set here
_SECRET_KEY: Final = re.compile(
    r"password|passwd|passphrase|secret|(^|[._-])token($|[._-])|access[._-]?key|private[._-]?key|key[._]pem|"
    r"authorization|credential|cookie",
    re.IGNORECASE,
)
_FRAMES: Final = 20
_CAUSES: Final = 8
_FIRST: Final = ("timestamp", "level", "event", "logger")
_SHORT_FIELDS: Final = 4  # of a short line about nothing that went wrong
_PLACE: Final = ("topic", "partition")
_PAINTED: Final = {"warning": "33", "error": "31;1", "critical": "31;1"}

Format = Literal["auto", "console", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSetup:
    """A process's log settings, for `follow` in another one; `bound` are the fields of all its lines."""

    level: str = "warning"
    fmt: Literal["console", "json", "short"] = "json"
    bound: Mapping[str, object] = field(default_factory=dict)


class _Process:
    """The log state of this process."""

    setup: LogSetup | None = None
    bound: Mapping[str, object] = {}
    handler: logging.Handler | None = None
    unraisable: Callable[[sys.UnraisableHookArgs], object] | None = None


def bind(**values: object) -> None:
    """Add `values` to every further line of this process, such as pair, instance, incarnation; None removes one."""
    merged = {**_Process.bound, **values}
    _Process.bound = {key: value for key, value in merged.items() if value is not None}


def setup() -> LogSetup:
    """Return this process's log settings; JSON from WARNING up if it was not configured."""
    return replace(_Process.setup or LogSetup(), bound=_Process.bound)


def follow(other: LogSetup) -> None:
    """Apply the log settings of another process, on stderr. Cheap if they are already applied."""
    if other != _Process.setup:
        configure(level=other.level, fmt=other.fmt, stream=sys.__stderr__)
        bind(**other.bound)
        quiet_kafka_client(other.level)
        _Process.setup = other


def quiet_kafka_client(level: str) -> None:
    """Have kafka-python log nothing unless `level` is `debug`: its errors come to its callers, which report them once.

    It writes several lines a second while a broker is unavailable.
    """
    if level != "debug":
        logging.getLogger("kafka").setLevel(logging.CRITICAL)


def configure_unless_done(stream: TextIO | None = None) -> None:
    """Configure structlog to write masked JSON to `stream` (stderr) from WARNING up, unless it is configured already.

    For processes that also run the user's own code: their logging is left alone.
    """
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                _name_error,
                *_json(),
                _mask_line,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.WriteLoggerFactory(stream or sys.__stderr__),
            cache_logger_on_first_use=False,
        )


def configure(*, level: str = "info", fmt: Format | Literal["short"] = "auto", stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (stderr): Tandem's from `level` up, those of libraries from WARNING up.

    `auto` is console on a terminal, else JSON. `short` is one short line for an event: time, event, topic-partition and
    few fields. Colours need a terminal and no NO_COLOR. May be called again.
    """
    stream = stream if stream is not None else sys.stderr
    terminal = stream.isatty()
    console = fmt == "console" or (fmt == "auto" and terminal)
    colours = terminal and not os.environ.get("NO_COLOR")
    render = _short(colours=colours) if fmt == "short" else _console(colours=colours) if console else _json()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        _Formatter(
            foreign_pre_chain=_shared(),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    own = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    if _Process.handler is not None:
        root.removeHandler(_Process.handler)
    root.addHandler(handler)
    root.setLevel(max(logging.WARNING, own))
    for name in _OURS:
        logging.getLogger(name).setLevel(own)
    _Process.handler = handler
    stderr_lines.set_only_json(wanted=False)
    _Process.setup = LogSetup(level=level, fmt="short" if fmt == "short" else "console" if console else "json")
    logging.captureWarnings(capture=True)
    threading.excepthook = _thread_died
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def configure_instance(*, level: str, fmt: Format) -> None:
    """Configure the log of `tandem run` and of its workers. Clients don't log: the pipeline reports their errors once.

    The clients of both Kafka and S3 write several lines a second while a broker or the store is unavailable. On a
    terminal `auto` is short lines, unless all of `debug` is wanted. If the log is JSON, all of stderr is from now on:
    `stderr_lines`.
    """
    short = fmt == "auto" and level != "debug" and sys.stderr.isatty()
    configure(level=level, fmt="short" if short else fmt)
    stderr_lines.set_only_json(wanted=_Process.setup is not None and _Process.setup.fmt == "json")
    if stderr_lines.only_json() and _Process.unraisable is None:
        _Process.unraisable, sys.unraisablehook = sys.unraisablehook, _log_unraisable
    quiet_kafka_client(level)
    if level != "debug":
        import stamina  # noqa: PLC0415 (takes a tenth of a second, and most commands need none of it)

        stamina.instrumentation.set_on_retry_hooks([])
    else:
        logging.getLogger("stamina").setLevel(logging.NOTSET)


def count_retries(count: Callable[[], None]) -> None:
    """Call `count` whenever the store's client retries a request, in addition to the log line about it."""
    import stamina  # noqa: PLC0415 (as above)

    def hook(details: stamina.instrumentation.RetryDetails) -> None:
        del details
        count()

    stamina.instrumentation.set_on_retry_hooks([*stamina.instrumentation.get_on_retry_hooks(), hook])


def reset() -> None:
    """Undo `configure` and `bind`, and forget registered secrets: for tests and for programs that embed Tandem."""
    if _Process.handler is not None:
        logging.getLogger().removeHandler(_Process.handler)
    for name in (*_OURS, *_THEIRS):
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.getLogger().setLevel(logging.WARNING)
    logging.captureWarnings(capture=False)
    threading.excepthook = threading.__excepthook__
    if _Process.unraisable is not None:
        sys.unraisablehook = _Process.unraisable
    structlog.reset_defaults()
    _Process.bound, _Process.handler, _Process.setup, _Process.unraisable = {}, None, None, None
    safe_text.forget_secrets()
    stderr_lines.set_only_json(wanted=False)


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Masks registered secrets in the finished line, whatever part of it they are in."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _shared() -> list[Processor]:
    return [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _name_error,
        _add_bound,
    ]


def _console(*, colours: bool) -> list[Processor]:
    return [_hide, _escape, structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=_format_traceback)]


def _short(*, colours: bool) -> list[Processor]:
    full = structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=_format_traceback)

    def render(logger: WrappedLogger, name: str, event: EventDict) -> str:
        """Return time of day (UTC), event, place and fields; all fields of a warning, and all there is of an error."""
        if "exc_info" in event or "stack" in event:
            return full(logger, name, event)
        level = event.get("level", "info")
        place = [str(event[key]) for key in _PLACE if event.get(key) is not None]
        said = {*_FIRST, *_PLACE, *_Process.bound}
        fields = [f"{key}={value}" for key, value in event.items() if key not in said and value is not None]
        kept = fields if level in _PAINTED else fields[:_SHORT_FIELDS]
        code = _PAINTED.get(level) if colours else None
        text = f"{level}: {event['event']}" if level in _PAINTED else str(event["event"])
        words = [str(event["timestamp"])[11:19], f"\x1b[{code}m{text}\x1b[0m" if code else text]
        return "  ".join([*words, *(["-".join(place)] if place else []), *([" ".join(kept)] if kept else [])])

    return [_hide, _escape, render]


def _json() -> list[Processor]:
    return [
        structlog.processors.ExceptionRenderer(_describe_current),
        _hide,
        _order,
        structlog.processors.JSONRenderer(default=_plain),
    ]


def _add_bound(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for key, value in _Process.bound.items():
        event.setdefault(key, value)
    return event


def _name_error(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace the exception in the field `error` by its text; `code` is the code of a TandemError."""
    error = event.get("error")
    if isinstance(error, BaseException):
        event["error"] = str(error)
    if isinstance(error, TandemError):
        event.setdefault("code", error.code)
    return event


def _hide(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {key: _hidden(key, value) for key, value in event.items()}


def _hidden(key: object, value: object) -> object:
    if isinstance(key, str) and _SECRET_KEY.search(key) and value is not None:
        return MASK
    if isinstance(value, str):
        return redact(value)  # before a renderer escapes it once more
    if isinstance(value, Mapping):
        return {str(inner): _hidden(inner, item) for inner, item in value.items()}
    if isinstance(value, (list, tuple)) and key != "exc_info":
        return [_hidden(None, item) for item in value]
    return value


def _escape(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Escape control characters in texts; the renderer itself escapes those inside lists and mappings."""
    return {printable(str(key)): _escaped(key, value) for key, value in event.items()}


def _escaped(key: object, value: object) -> object:
    if not isinstance(value, str):
        return value
    return _indented(value) if key == "stack" else printable(value)


def _format_traceback(stream: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    stream.write(_indented(text.getvalue()))


def _indented(text: str) -> str:
    """Return indented lines, which can't be mistaken for events: an event begins with its time in the first column."""
    return textwrap.indent(printable(redact(text), lines=True), "  ")


def _mask_line(_: WrappedLogger, __: str, line: Any) -> str:  # noqa: ANN401 - structlog calls what was rendered an event
    return redact(line)


def _order(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {**{key: event[key] for key in _FIRST if key in event}, **event}


def _plain(value: object) -> object:
    """Return a JSON-compatible form of a value that JSON does not support."""
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Enum():
            return value.value
        case set() | frozenset():
            return sorted(str(item) for item in value)
        case _:
            return redact(str(value))


def _describe_current(
    exc_info: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
) -> Any:  # noqa: ANN401 - structlog takes any rendering
    return describe(exc_info[1]) if exc_info[1] is not None else None


def describe(error: BaseException, *, depth: int = 0) -> dict[str, object]:
    """Return an exception as plain data: type, message, frames (innermost last, no locals) and its cause."""
    frames = traceback.extract_tb(error.__traceback__)
    described: dict[str, object] = {
        "type": f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        "message": str(error),
        **({"code": error.code} if isinstance(error, TandemError) else {}),
        "frames": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-_FRAMES:]],
    }
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and depth < _CAUSES:
        described["cause"] = describe(cause, depth=depth + 1)
    if isinstance(error, BaseExceptionGroup) and depth < _CAUSES:
        described["group"] = [describe(inner, depth=depth + 1) for inner in error.exceptions]
    return described


def _thread_died(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit or args.exc_value is None:
        return
    name = args.thread.name if args.thread else "?"
    error = (args.exc_type, args.exc_value, args.exc_traceback)
    structlog.get_logger("tandem.controller").critical("thread died", thread=name, exc_info=error)


def _log_unraisable(args: sys.UnraisableHookArgs) -> None:
    """Log an error that no code can handle, such as one of a finalizer, which Python prints as plain text otherwise."""
    error = None if args.exc_value is None else (args.exc_type, args.exc_value, args.exc_traceback)
    structlog.get_logger("tandem.controller").error("error ignored", where=args.err_msg, exc_info=error)
