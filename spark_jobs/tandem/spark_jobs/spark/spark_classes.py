"""The class archive of Spark's JVM: used by every session that starts one, made once in the background.

`python -m tandem.spark_jobs.spark.spark_classes` makes it now, in half a minute; `make setup` and the image do that.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import structlog

from tandem.spark_jobs.spark.class_archive import VARIABLE, ClassArchive, find_archive
from tandem.spark_jobs.spark.java_launcher import environment_variable

_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
#: Variables with which Spark's launcher puts more on the class path.
_OTHER_CLASSES: Final = (
    "SPARK_CONF_DIR",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "SPARK_PREPEND_CLASSES",
    "SPARK_TESTING",
    "SPARK_SQL_TESTING",
)
_OTHER_PROPERTIES: Final = (
    "spark.driver.extraClassPath",
    "spark.jars",
    "spark.jars.packages",
    "spark.driver.userClassPathFirst",
)
#: What a process that outlives its command is given of the environment: no secret is among it.
_KEPT: Final = (
    "HOME",
    "JAVA_HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONPATH",
    "SPARK_HOME",
    "TMPDIR",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
    VARIABLE,
)
_MODULE: Final = "tandem.spark_jobs.spark.spark_classes"
#: At lowest priority on a busy machine it takes minutes.
_EXIT_TIMEOUT_S: Final = 900.0
_NICE: Final = 19
#: Processes in the background, which Python would complain about if nothing referred to them.
_STARTED: Final[list[subprocess.Popen[bytes]]] = []
_LOG = structlog.get_logger()


def find_spark_archive(environment: Mapping[str, str], properties: Mapping[str, str]) -> ClassArchive | None:
    """Return the archive of the Spark that PySpark would start with these properties; None: start without one."""
    home = _spark_home(environment)
    if home is None or (home / "conf").exists() or any(environment.get(name) for name in _OTHER_CLASSES):
        return None
    if any(properties.get(name) for name in _OTHER_PROPERTIES):
        return None
    options = properties.get("spark.driver.extraJavaOptions", "")
    return find_archive("spark", [*(home / "jars").glob("*.jar")], environment, options=options)


@contextmanager
def started_with(archive: ClassArchive | None, options: Sequence[str] = ()) -> Iterator[None]:
    """Let a JVM that Spark's launcher starts in the block use the archive, if it is ready, and these options.

    They stand before the user's own, which therefore prevail.
    """
    given = [*options] if archive is None or not archive.ready() else [f"@{archive.arguments}", *options]
    with _submit_options(given) if given else nullcontext():
        yield


def _submit_options(options: Sequence[str]) -> AbstractContextManager[None]:
    text = " ".join((*map(shlex.quote, options), os.environ.get(_OPTIONS, ""))).strip()
    return environment_variable(_OPTIONS, text)


def make_in_background(archive: ClassArchive | None) -> None:
    """Start a process that makes the archive, if it may be made, and return at once. It outlives this process."""
    if archive is None or archive.ready() or not archive.may_be_made():
        return
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    with suppress(OSError):
        process = subprocess.Popen(  # noqa: S603 - this Python and a module of this package
            [sys.executable, "-m", _MODULE],
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _STARTED.append(process)
        _LOG.debug("the class archive of Spark's JVM is made in the background", path=str(archive.archive))


def _spark_home(environment: Mapping[str, str]) -> Path | None:
    """Return Spark's folder, as PySpark finds it, without importing PySpark."""
    if given := environment.get("SPARK_HOME"):
        return Path(given)
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec and spec.origin else None


def _train(options: Sequence[str]) -> bool:
    """Run a session as commands have it, with a job that shuffles, until its JVM has ended."""
    from pyspark.core.context import SparkContext  # noqa: PLC0415 (PySpark takes a second to load)

    from tandem.spark_jobs.spark.session import build_session  # noqa: PLC0415 (it imports this module)

    with _submit_options(options):
        spark = build_session("local[2,4]", name="class archive")
    try:
        # Spark SQL's planning and Parquet would make the archive half as large again, for `tandem export` alone.
        pairs = spark.sparkContext.parallelize([(number % 3, number) for number in range(100)], 2)
        pairs.reduceByKey(max, 2).collect()
    finally:
        spark.stop()
        gateway = SparkContext._gateway  # noqa: SLF001 (nothing public ends the JVM)
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()  # upon which it exits, and writes the archive
    return gateway is not None and gateway.proc.wait(_EXIT_TIMEOUT_S) == 0


def main() -> int:
    """Make the archive unless it is there. Exit code 0 also if there is none to be made: Spark starts without it."""
    os.nice(_NICE)
    archive = find_spark_archive(os.environ, {})
    if archive is None:
        return 0
    try:
        made = archive.make(_train)
    except Exception as error:  # noqa: BLE001 - Spark starts without it
        print(f"no class archive in {archive.folder}: {error}", file=sys.stderr)  # noqa: T201 - a command line
        return 1
    if made:
        print(archive.archive)  # noqa: T201 - likewise
    return 0 if made else 1


if __name__ == "__main__":
    sys.exit(main())
