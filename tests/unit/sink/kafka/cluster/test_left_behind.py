"""A reference too many to a topic id is let go of, and nothing else ever is."""

from __future__ import annotations

import ctypes
import weakref
from types import SimpleNamespace

import pytest

from tandem.sink.kafka.cluster.librdkafka_references import release_extra_reference


class Id:
    """Stands for a topic id."""


def described(*, forgotten: int) -> tuple[SimpleNamespace, weakref.ref[Id]]:
    """A description whose topic id has so many references too many."""
    found = SimpleNamespace(topic_id=Id())
    for _ in range(forgotten):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(found.topic_id))
    return found, weakref.ref(found.topic_id)


def test_what_was_forgotten_ends_with_its_description() -> None:
    """While the description lives, so does its id."""
    description, alive = described(forgotten=1)
    release_extra_reference(description, version="2.16.1")
    assert alive() is description.topic_id
    del description
    assert alive() is None


@pytest.mark.parametrize("version", ["2.16.2", "2.17.0rc1", "3.0.0"])
def test_a_newer_release_is_left_alone(version: str) -> None:
    """It may have mended that."""
    description, alive = described(forgotten=1)
    release_extra_reference(description, version=version)
    del description
    assert alive() is not None


@pytest.mark.parametrize("forgotten", [0, 2])
def test_any_other_count_is_left_alone(forgotten: int) -> None:
    """It is not this fault."""
    description, alive = described(forgotten=forgotten)
    release_extra_reference(description, version="2.16.1")
    assert alive() is description.topic_id
    held = description.topic_id
    release_extra_reference(description, version="2.16.1")
    assert alive() is held


def test_a_description_without_an_id() -> None:
    """An old broker has none."""
    release_extra_reference(SimpleNamespace(topic_id=None), version="2.16.1")
