"""The option for the Spark master that a command runs on."""

from __future__ import annotations

from typing import Annotated

import typer


def _known(master: str) -> str:
    from tandem.spark_jobs.spark.session import check_master  # noqa: PLC0415 - loaded when the command runs, not for --help

    check_master(master)
    return master


MasterOption = Annotated[str, typer.Option("--master", help="Spark master.", callback=_known)]
