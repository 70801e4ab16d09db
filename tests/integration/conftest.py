"""One Spark session for all tests that need one: starting it takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_jobs.session import build_session
from spark_jobs.source import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores and retries, as commands use it; the data source is registered."""
    session = build_session("local[2,4]", name="tests")
    register(session)
    yield session
    session.stop()
