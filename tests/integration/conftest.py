"""One Spark session for all tests that need one: starting it takes seconds. Pairs of instances, gone with the test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.clusters.brokers import Member
from support.pairs.instances import Pair, PairMaker, store_section

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import S3Server
from tandem.spark_jobs.datasource.source import register
from tandem.spark_jobs.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores and retries, as commands use it; the data source is registered."""
    session = build_session("local[2,4]", name="tests")
    register(session)
    yield session
    session.stop()


@pytest.fixture
def new_pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PairMaker]:
    """Makes pairs whose processes end with the test."""
    numbers = itertools.count(1)
    with ExitStack() as stack:

        def make(
            topics: Sequence[str] | Mapping[str, Any] = (),
            *,
            kafka: KafkaServer | None = None,
            s3: S3Server | None = None,
            **sections: Any,
        ) -> Pair:
            kafka = kafka or request.getfixturevalue("kafka")
            s3 = s3 or request.getfixturevalue("s3")
            folder = tmp_path / f"pair-{next(numbers)}"
            folder.mkdir()
            root = f"s3://{s3.bucket}/{tmp_path.parent.name}-{tmp_path.name}/{folder.name}"
            pair = Pair(folder, bootstrap=kafka.bootstrap, store=store_section(root, s3), topics=topics, **sections)
            return stack.enter_context(pair)

        yield make


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[KafkaServer]]:
    """Three brokers for a module; the first is the controller too and stays up. Who stops another starts it again."""
    unclean = {"unclean.leader.election.enable": "true", "auto.leader.rebalance.enable": "false"}
    first = KafkaServer(tmp_path_factory.mktemp("broker1"), overrides=unclean)
    with ExitStack() as stack:
        stack.callback(first.kill)  # a clean stop of the others would wait for a controller that is gone
        first.start()
        members = [Member(tmp_path_factory.mktemp(f"broker{node}"), first, node) for node in (2, 3)]
        for member in members:
            stack.callback(member.kill)
        with ThreadPoolExecutor() as pool:
            list(pool.map(Member.start, members))
        yield [first, *members]
