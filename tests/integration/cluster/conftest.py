"""One Spark standalone cluster for the tests of a module: a master, and two workers with a core each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.clusters.standalone_spark import Done, StandaloneSpark


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    """The cluster. A test that kills a worker starts it again."""
    with StandaloneSpark(tmp_path_factory.mktemp("spark")) as spark:
        for _ in range(2):
            spark.add_worker()
        yield spark


@pytest.fixture(scope="module")
def on_cluster(standalone: StandaloneSpark) -> Iterator[Callable[..., Done]]:
    """Runs commands in one session on the cluster, which has all cores of it until the module ends."""
    with standalone.commands() as tandem:
        yield tandem
