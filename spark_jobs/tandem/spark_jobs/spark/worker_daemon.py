"""The process of which Spark's Python workers on a local master are forks: `spark.python.daemon.module`.

It loads what tasks need before it forks, so that this takes its half second of processor time once and not once per
worker, and the workers share the memory. On a cluster PySpark's own daemon is used: a package that is sent along with
an application does not exist yet when an executor starts its daemon.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: The tasks of a restore, with which come the libraries that nearly all tasks need.
LOADED: Final = "tandem.spark_jobs.restore.worker_calls"

#: PySpark's archives, below the folder in which it is installed.
_ARCHIVE: Final = re.compile(r"(?P<site>.+)/pyspark/python/lib/(?P<module>pyspark|py4j)(-[^/]+)?\.zip")


def main() -> None:
    """Load the modules, and serve until Spark closes the daemon's input."""
    sys.path[:] = without_archives(sys.path)
    from pyspark.daemon import manager  # noqa: PLC0415 (nothing else needs PySpark here)

    importlib.import_module(LOADED)
    gc.freeze()  # what is loaded is no garbage, and a worker that collects some copies no page of it
    manager()


def without_archives(path: Sequence[str]) -> list[str]:
    """Return `path` without PySpark's archives of itself and of Py4J, if what they hold is installed beside them.

    Spark puts them first for machines on which PySpark is not installed. Modules in an archive are compiled each time
    they are loaded, which is a second of processor time before the first task.
    """
    archives = {name: match for name in path if (match := _ARCHIVE.fullmatch(name)) is not None}
    left = [name for name in path if name not in archives]
    for match in archives.values():
        found = importlib.machinery.PathFinder.find_spec(match["module"], left)
        if found is None or found.origin is None or str(Path(found.origin).parents[1]) != match["site"]:
            return list(path)
    return left


if __name__ == "__main__":
    main()
