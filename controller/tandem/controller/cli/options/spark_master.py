"""The option for the Spark master that a command runs on, and the session that is started there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.controller.cli.output import output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _known(master: str) -> str:
    from tandem.spark_jobs.spark.session import check_master  # noqa: PLC0415 - loaded when the command runs, not for --help

    check_master(master)
    return master


MasterOption = Annotated[str, typer.Option("--master", help="Spark master.", callback=_known)]


@contextmanager
def spark_session(master: str, *, name: str) -> Iterator[SparkSession]:
    """Yield a session on `master`, and tell on stderr that Spark starts, which takes seconds."""
    from tandem.spark_jobs.spark.session import is_local, session  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.spark.start_time import starting_spark  # noqa: PLC0415 - likewise

    output.progress(starting_spark(os.environ) if is_local(master) else "starting Spark")
    with session(master, name=name) as spark:
        yield spark
