"""A pipeline on a scripted log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.pipeline.pipelines import Bench, at_work


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A bench with an empty log; whatever runs is ended."""
    with at_work() as it:
        yield it
    assert all(source.closed for source in it.log.sources)
