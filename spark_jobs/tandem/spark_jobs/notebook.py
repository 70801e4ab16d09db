"""The session of a notebook: `notebook_session()`, then `spark.read.format("kafka_backup")`.

docs/data-source.md is its manual, docs/notebook.ipynb an example.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tandem.backup_avro.errors import TandemError
from tandem.sink.process import log
from tandem.spark_jobs.spark.session import DEFAULT_MASTER, build_session, missing_extra, plain_errors
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def notebook_session(master: str = DEFAULT_MASTER, *, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session that reads backups: the one that runs in this process, or a new one on `master`.

    A new session has the properties of the commands, and `conf`: it is private, and Python workers of a local master
    are the interpreter of the notebook, whatever PATH names, unless PYSPARK_PYTHON names another one. The data source
    is registered. Raises ConfigError without PySpark or Java, and if a worker lacks this package.
    """
    log.configure_unless_done()
    spark = build_session(master, name="tandem notebook", extra=conf)
    try:
        # Not before PySpark is known to be there.
        from tandem.spark_jobs.datasource.source import register  # noqa: PLC0415
    except ImportError as error:
        raise missing_extra(error) or error from error
    context = spark.sparkContext
    try:
        # As many tasks as there are cores, so that most likely each executor has one. Workers load this module for
        # them, and with it what lies beside.
        with plain_errors():
            cores = context.defaultParallelism
            context.parallelize(range(cores), cores).foreach(logged(_load_reader))
    except TandemError as error:
        raise error from None  # a notebook would show hundreds of lines of the JVM's above it
    register(spark)
    return spark


def _load_reader(_: object) -> None:
    """Import on a worker what reads a backup there."""
    from tandem.spark_jobs.datasource import source  # noqa: F401, PLC0415 (loads PySpark)
