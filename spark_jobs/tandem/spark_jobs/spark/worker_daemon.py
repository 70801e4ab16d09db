"""The process of which Spark's Python workers on a local master are forks: `spark.python.daemon.module`.

It loads what tasks need before it forks, so that this takes its half second of processor time once and not once per
worker, and the workers share the memory. On a cluster PySpark's own daemon is used: a package that is sent along with
an application does not exist yet when an executor starts its daemon.
"""

from __future__ import annotations

import gc
import importlib
from typing import Final

#: The tasks of a restore, with which come the libraries that nearly all tasks need.
LOADED: Final = "tandem.spark_jobs.restore.worker_calls"


def main() -> None:
    """Load the modules, and serve until Spark closes the daemon's input."""
    from pyspark.daemon import manager  # noqa: PLC0415 (nothing else needs PySpark here)

    importlib.import_module(LOADED)
    gc.freeze()  # what is loaded is no garbage, and a worker that collects some copies no page of it
    manager()


if __name__ == "__main__":
    main()
