"""The Spark session of a command: one wheel, no extra jars, any master.

Of the modules that start and plan Spark jobs, only this one reads the environment.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import secrets
import shutil
import signal
import socketserver
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from tandem.backup_avro.errors import ConfigError, PermanentError, RefusedError, TandemError, code_in_note
from tandem.sink.process import sourced_secret
from tandem.spark_jobs.spark import worker_daemon
from tandem.spark_jobs.spark.class_archive import ClassArchive
from tandem.spark_jobs.spark.java_launcher import without_incubator_modules
from tandem.spark_jobs.spark.spark_classes import find_spark_archive, make_in_background, started_with
from tandem.spark_jobs.spark.start_time import remember_start
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

#: All cores, four attempts per task. Plain `local[*]` would never retry a task.
DEFAULT_MASTER: Final = "local[*,4]"

#: The names of Spark's own schedulers, and any URL, which a plug-in may support.
_MASTER: Final = re.compile(r"local|local(-cluster)?\[[^\]]+\]|yarn|[a-z0-9+.-]+://.+")
_OF_EXTRA: Final = frozenset({"pyspark", "py4j", "numpy", "pandas", "pyarrow"})
_MASTER_REMEDY: Final = "write e.g. local[*,4], spark://host:7077, yarn, or k8s://https://host:443"
_STOP_S: Final = 10.0
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_RAISED: Final = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)")
# Texts of Spark for processes that ended without a Python error, and what was lost.
_LOST: Final = (
    (re.compile(r"Python worker exited unexpectedly"), "a Python worker"),
    (re.compile(r"ExecutorLostFailure"), "an executor"),
    (re.compile(r"^MemoryError$|OutOfMemoryError", re.MULTILINE), "the memory for a task"),
)
# A package that a worker's Python has not: in a task's error, or what the daemon of the workers said when it ended.
_ABSENT: Final = re.compile(r"No module named '([\w.]+)'")
_ABSENT_REMEDY: Final = (
    "install tandem-kafka-backup[spark] in the Python of the workers, on each of their machines, and name that Python "
    "in PYSPARK_PYTHON before the session starts"
)
# An error of the JVM, as the line of a stack trace that names it.
_THROWN: Final = re.compile(r"(?:Caused by)?: ((?:[a-z_]\w*\.)+[A-Z]\w*(?:Error|Exception): .+)")
# Text of Spark where a context was stopped under a job: by the cluster, as nobody else stops one.
_ENDED: Final = re.compile(r"stopped SparkContext|SparkContext (?:was|has been) shut ?down")
_ENDED_REMEDY: Final = (
    "Spark's own lines above say why. `All masters are unresponsive`: the address, or spark.authenticate.secret, is "
    "not the master's. `Master removed our application`: its workers can't start executors, and their logs say why"
)
_LOST_REMEDY: Final = (
    "give Spark more memory, or run fewer tasks at once (--master 'local[1,4]'); --debug shows the whole story"
)
_DISKS: Final = "spark.io.encryption.enabled"
#: Spark's ports answer only clients that know the session's secret, and encrypt; files that Spark spills are encrypted;
#: the web page, which has no login, is off.
_PRIVATE: Final = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    _DISKS: "true",
    "spark.ui.enabled": "false",
}
_SECRET: Final = "spark.authenticate.secret"  # noqa: S105 (a property's name)
#: Masters for which Spark itself creates a secret for each session.
_MAKES_SECRET: Final = re.compile(r"local(\[.*)?|yarn|k8s://.*")
_PRIVATE_REMEDY: Final = (
    "remove these properties from spark-defaults.conf and from --conf of spark-submit; a standalone cluster needs "
    "spark.authenticate and spark.authenticate.secret on master, workers and driver: docs/security.md"
)
_LOG = structlog.get_logger()
#: Options of a JVM in which nothing but scheduling happens: optimizing its code would take a third of the processor
#: time of a short job.
_SCHEDULES_ONLY: Final = ("-XX:TieredStopAtLevel=1",)
_JAVA_REMEDY: Final = "install Java 17 or newer and put `java` on the PATH, or set JAVA_HOME"


def is_local(master: str) -> bool:
    """Return whether Spark runs on this machine, inside the driver's process."""
    return master == "local" or master.startswith("local[")


def check_master(master: str) -> None:
    """Raise ConfigError for a master that Spark would reject, before any object is read or Spark is started."""
    if _MASTER.fullmatch(master) is None:
        raise ConfigError(f"--master {master!r} is none that Spark knows", code="TDM-P067", remedy=_MASTER_REMEDY)


def missing_extra(error: ImportError) -> ConfigError | None:
    """Return the error for a package that the extra [spark] brings; None if `error` is about another one."""
    if (error.name or "").partition(".")[0] not in _OF_EXTRA:
        return None
    return _lacks_extra(error.name)


def _lacks_extra(package: str | None) -> ConfigError:
    return ConfigError(
        f"this needs the extra [spark], which is not installed: there is no {package}",
        code="TDM-P069",
        remedy="pip install 'tandem-kafka-backup[spark]'",
    )


def settings(master: str) -> dict[str, str]:
    """Return the Spark properties for `master`. Pure. With a local master, ports are bound to the loopback only."""
    chosen = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        # Tasks write. A second copy of a slow task would fence the first one, and each further copy the one before it,
        # until Spark has seen so many failures that it gives up.
        "spark.speculation": "false",
    }
    if is_local(master):
        chosen |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
            "spark.python.daemon.module": worker_daemon.__name__,
        }
    return chosen


def private_settings(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that keep a session private, without those that the user has set in `given`.

    A standalone master authenticates only with the secret that it shares with its workers, so if `given` does not
    contain it, authentication is left as it is.
    """
    chosen = dict(_PRIVATE)
    if master.startswith("local-cluster["):
        chosen[_SECRET] = secrets.token_hex(32)
    elif _MAKES_SECRET.fullmatch(master) is None and _SECRET not in given:
        del chosen["spark.authenticate"]
    chosen |= given
    if "spark.network.crypto.enabled" not in given and not _is_on(chosen, "spark.authenticate"):
        del chosen["spark.network.crypto.enabled"]  # Spark does not start with encryption alone
    return {key: value for key, value in chosen.items() if key not in given}


def open_settings(conf: Mapping[str, str]) -> list[str]:
    """Return the properties, as `key=value`, that let other users read the data of a session with `conf`. Pure."""
    left = [f"{key}=false" for key, value in _PRIVATE.items() if value == "true" and not _is_on(conf, key)]
    if _is_on({"spark.ui.enabled": "true", **conf}, "spark.ui.enabled") and not conf.get("spark.ui.filters"):
        left.append("spark.ui.enabled=true")  # without a filter that asks for a login
    return left


def encrypts_disks(conf: Mapping[str, str]) -> bool:
    """Return whether Spark encrypts what it writes to local disks. Pure."""
    return _is_on(conf, _DISKS)


def require_encrypted_disks(conf: Mapping[str, str]) -> None:
    """Raise RefusedError if what Spark writes to local disks would lie there in the clear. Pure."""
    if not encrypts_disks(conf):
        raise RefusedError(
            f"a shuffle would write keys of records in the clear to the local disks of Spark: {_DISKS} is not true",
            code="TDM-P083",
            remedy=f"set {_DISKS}=true, or remove it from spark-defaults.conf and from --conf of spark-submit",
        )


def _is_on(conf: Mapping[str, str], key: str) -> bool:
    return conf.get(key, "false").strip().lower() == "true"


def build_session(
    master: str = DEFAULT_MASTER, *, name: str = "tandem", extra: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a new session, or the one that is already running in this process, like `build_context`."""
    build_context(master, name=name, extra=extra)
    return _session_of_context(master, name, extra)


def _session_of_context(master: str, name: str, extra: Mapping[str, str] | None) -> SparkSession:
    """Return the session of the context that runs in this process."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 (PySpark takes a second to load)

    builder = SparkSession.builder.appName(name)
    for key, value in (settings(master) | dict(extra or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def build_context(
    master: str = DEFAULT_MASTER,
    *,
    name: str = "tandem",
    extra: Mapping[str, str] | None = None,
    schedules_only: bool = False,
) -> SparkContext:
    """Return a new Spark context, or the one that is already running in this process (as on Databricks).

    Jobs that run no SQL need nothing else, and a session takes most of a second more to start. `extra` holds Spark
    properties that override the defaults of this module. `schedules_only`: tasks return little and shuffle little, so
    the JVM of a local master need not optimize its code. Workers of a local master run this Python interpreter. Raises
    ConfigError without PySpark or Java, or for a master that Spark does not know, PermanentError if Spark can't start.
    """
    if is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # The JVM reads this before any property; it stops its warning about host names.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with warnings.catch_warnings():
        # PySpark also loads its test tools, which warn about pandas 3. Nothing here uses pandas.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            from pyspark.conf import SparkConf  # noqa: PLC0415 (as above)
            from pyspark.core.context import SparkContext  # noqa: PLC0415 (as above)
            from pyspark.errors import PySparkException  # noqa: PLC0415 (PySpark takes a second to load)
        except ImportError as error:
            if (missing := missing_extra(error)) is None:
                raise
            raise missing from error
        if is_local(master):
            _require_java()
        chosen = settings(master) | dict(extra or {})
        try:
            first = SparkConf(loadDefaults=False).setMaster(master).setAppName(name).setAll(list(chosen.items()))
            # These properties are among the JVM's arguments. Once it runs, SparkConf has the user's own properties too.
            new = SparkContext._gateway is None  # noqa: SLF001 (there is no JVM yet)
            archive = _archive(chosen) if new else None
            options = _SCHEDULES_ONLY if new and is_local(master) and schedules_only else ()
            quiet = without_incubator_modules() if new and "PYSPARK_GATEWAY_PORT" not in os.environ else nullcontext()
            with _inherited(is_local(master) and new), started_with(archive, options), quiet:
                SparkContext._ensure_initialized(conf=first)  # noqa: SLF001 (what a builder does, in two steps)
            chosen |= private_settings(master, dict(SparkConf().getAll()) | chosen)
            context = SparkContext.getOrCreate(SparkConf().setMaster(master).setAppName(name).setAll([*chosen.items()]))
        except PySparkException as error:
            raise PermanentError(f"Spark did not start: {error}", code="TDM-P070", remedy=_JAVA_REMEDY) from error
        except Exception as error:
            if "Could not parse Master URL" in str(error):
                raise ConfigError(
                    f"Spark does not know the master {master!r}", code="TDM-P071", remedy=_MASTER_REMEDY
                ) from error
            raise
    warn_if_open(context.getConf().getAll())
    return context


def _require_java() -> None:
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise ConfigError("Spark needs Java, and there is none", code="TDM-P068", remedy=_JAVA_REMEDY)


def _inherited(mine: bool) -> AbstractContextManager[None]:
    """Let a JVM that is started in the block, and its Python workers, inherit secrets that were typed as values.

    `mine`: whether this process starts the JVM, for a local master. A JVM of `spark-submit` has its own environment.
    """
    if not mine or "PYSPARK_GATEWAY_PORT" in os.environ:
        return nullcontext()
    return sourced_secret.handed_over(os.environ)


def _archive(properties: Mapping[str, str]) -> ClassArchive | None:
    """Return the class archive for a JVM that this process starts; None if `spark-submit` has started it."""
    return None if "PYSPARK_GATEWAY_PORT" in os.environ else find_spark_archive(os.environ, properties)


def warn_if_open(conf: Iterable[tuple[str, str]]) -> None:
    """Log a warning with the properties of a session that let other users read its data, if there are any."""
    found = open_settings(dict(conf))
    if found:
        _LOG.warning(
            "other users can read records and credentials from the Spark session",
            properties=found,
            remedy=_PRIVATE_REMEDY,
        )


#: Held while a context is started, and until one that nobody waits for any more is stopped.
_START: Final = threading.Lock()


class ContextStart:
    """A Spark context that is started in a thread of its own, so that its user can do other work meanwhile.

    Call it for the context: it waits, and raises the errors of `build_context`. A context that runs in this process
    already is used as it is, and is not stopped.
    """

    def __init__(
        self, master: str, *, name: str, extra: Mapping[str, str] | None = None, schedules_only: bool = False
    ) -> None:
        # Known at once, before anything else is begun. PySpark comes first: most of those who lack it lack Java too.
        if importlib.util.find_spec("pyspark") is None:
            raise _lacks_extra("pyspark")
        if is_local(master):
            _require_java()
        self._build = partial(build_context, master, name=name, extra=extra, schedules_only=schedules_only)
        self._extra = extra or {}
        self._context: SparkContext | None = None
        self._error: BaseException | None = None
        self._shared = False
        # Between the thread and the user: which of them stops the context.
        self._turn = threading.Lock()
        self._ended = self._started = False
        self._thread = threading.Thread(target=self._start, name="spark-start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        with _START:
            if self._ended:
                return
            self._shared = _is_running()
            began = time.monotonic()
            try:
                self._context = self._build()
                if not self._shared and is_local(self._context.master or ""):
                    remember_start(os.environ, time.monotonic() - began)
                start_worker_daemon(self._context)
            except BaseException as error:  # noqa: BLE001 - raised where the context is asked for
                self._error = error
            with self._turn:
                self._started, left = True, self._ended
            if left:
                self._stop()

    def __call__(self) -> SparkContext:
        """Return the context, as soon as it has started."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._context is not None
        return self._context

    def on_interrupt(self, signum: int, frame: FrameType | None) -> NoReturn:
        """Cancel all jobs, and raise KeyboardInterrupt in the thread that waits for them.

        PySpark's own handler calls the JVM over the connection on which this thread waits, and then both wait for ever.
        """
        del signum, frame
        if self._context is not None:
            if not self._shared:
                _silence_py4j()
            _beside(self._context.cancelAllJobs)
        raise KeyboardInterrupt

    def end(self, *, interrupted: bool) -> None:
        """Stop the context. One that is still starting is not waited for: it is stopped as soon as it has started."""
        with self._turn:
            self._ended, started = True, self._started
        if not started:
            return
        if interrupted:
            _beside(self._stop).join(_STOP_S)  # the JVM ends with this process at the latest
        else:
            self._stop()
            make_in_background(_archive(self._extra))

    def _stop(self) -> None:
        if self._context is None or self._shared:
            return
        from pyspark.sql import SparkSession  # noqa: PLC0415 (PySpark takes a second to load)

        _end_accumulators(self._context)
        spark = SparkSession._instantiatedSession  # noqa: SLF001 (nothing public tells without making one)
        if spark is not None and spark.sparkContext is self._context:
            spark.stop()  # stops the context, and forgets the session
        else:
            self._context.stop()


def _silence_py4j() -> None:
    """Drop what Py4J logs from now on: the JVM got the same Ctrl-C, and each connection that it has closed is an error.

    Some of it goes to the root logger.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _end_accumulators(context: SparkContext) -> None:
    """Shut the server of accumulators down in the background: it notices within a second, for which `stop` would wait.

    What it has received is not lost: it belongs to jobs that have ended. A server on a socket in a folder is left to
    `stop`, which removes the socket.
    """
    server = getattr(context, "_accumulatorServer", None)
    if isinstance(server, socketserver.TCPServer):
        context._accumulatorServer = None  # type: ignore[assignment]  # noqa: SLF001 (what `stop` sets it to)
        _beside(server.shutdown)


def _is_running() -> bool:
    """Return whether this process has a Spark context. Does not load PySpark, which takes a second."""
    module = sys.modules.get("pyspark.core.context")
    return module is not None and module.SparkContext._active_spark_context is not None  # noqa: SLF001 (nothing public)


@contextmanager
def starting_context(
    master: str = DEFAULT_MASTER,
    *,
    name: str = "tandem",
    extra: Mapping[str, str] | None = None,
    schedules_only: bool = False,
) -> Iterator[ContextStart]:
    """Yield a Spark context that starts while the block runs, and stop it afterwards unless it was running before.

    See `build_context`.
    """
    start = ContextStart(master, name=name, extra=extra, schedules_only=schedules_only)
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    if in_main:
        signal.signal(signal.SIGINT, start.on_interrupt)
    interrupted = False
    try:
        with plain_errors():
            yield start
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler)
        start.end(interrupted=interrupted)


@contextmanager
def session(
    master: str = DEFAULT_MASTER, *, name: str = "tandem", extra: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a session, and stop it afterwards unless it was running before."""
    with starting_context(master, name=name, extra=extra) as start:
        start()
        yield _session_of_context(master, name, extra)


def start_worker_daemon(context: SparkContext) -> None:
    """Start the daemon of a local master's Python workers in the background, so that the first tasks find it ready.

    A failure is ignored: tasks start it themselves.
    """
    if is_local(context.master or ""):
        _beside(lambda: context.parallelize([None], 1).foreach(logged(_do_nothing)))


def _do_nothing(_: object) -> None:
    """Run on a worker."""


def _beside(work: Callable[[], object]) -> threading.Thread:
    """Call the JVM from another thread, and so over a connection on which no response is pending.

    A failure is ignored: when a command is interrupted, the JVM may end before it answers, and nothing depends on it.
    """

    def run() -> None:
        with suppress(Exception):
            work()

    thread = threading.Thread(target=run, name="spark-aside", daemon=True)
    thread.start()
    return thread


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise the error that a task raised instead of Spark's error, if it is one of Tandem's own.

    Any other failure of Spark becomes PermanentError with the last line of its traceback.
    """
    try:
        yield
    except Exception as error:
        from py4j.protocol import Py4JError  # noqa: PLC0415 (comes with PySpark)
        from pyspark.errors import PySparkException  # noqa: PLC0415 (PySpark takes a second to load)

        if not isinstance(error, PySparkException | Py4JError):
            raise
        if _is_interrupt(error):
            raise KeyboardInterrupt from error
        raise from_spark(str(error)) from error


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused the error: the errors of Spark's own clean-up replace the KeyboardInterrupt."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or _is_interrupt(error.__context__))


def from_spark(text: str) -> TandemError:
    """Return the error that is described by the text of Spark's error. Pure."""
    known = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _kinds(TandemError)}
    last = thrown = ""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        name, found, message = line.strip().partition(": ")
        if found and name in known:
            code = next(filter(None, map(code_in_note, lines[at + 1 :])), None)
            if code is None:
                return known[name](message, code="TDM-P061")
            return known[name](message, code=code)
        if found and _RAISED.fullmatch(name):
            last = line.strip()
        if not thrown and (of_jvm := _THROWN.fullmatch(line.strip())):
            thrown = of_jvm[1]
    for pattern, what in _LOST:
        if pattern.search(text):
            return PermanentError(
                f"a Spark job lost {what}, again and again: killed, for want of memory perhaps, or crashed",
                code="TDM-P072",
                remedy=_LOST_REMEDY,
            )
    if absent := _ABSENT.search(text):
        return ConfigError(
            f"Spark's Python workers lack the module {absent[1]}", code="TDM-P085", remedy=_ABSENT_REMEDY
        )
    if _ENDED.search(text):
        return PermanentError("Spark's cluster has ended the application", code="TDM-P084", remedy=_ENDED_REMEDY)
    first = text.strip().partition("\n")[0]
    return PermanentError(
        f"a Spark job failed: {last or thrown or first}",
        code="TDM-P073",
        remedy="run again with --debug for the whole story",
    )


def _kinds(kind: type[TandemError]) -> Iterator[type[TandemError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)
