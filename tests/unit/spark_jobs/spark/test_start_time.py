"""The seconds that Spark took to start the last time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.sink.process.cache_folder import tandem_cache
from tandem.spark_jobs.spark.start_time import last_start_s, remember_start, starting_spark


def test_the_last_start_is_told(tmp_path: Path) -> None:
    """Nothing is known at first; a start replaces the one before it."""
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert last_start_s(environment) is None
    assert starting_spark(environment) == "starting Spark"
    remember_start(environment, 12.34)
    remember_start(environment, 6.78)
    assert last_start_s(environment) == 6.8
    assert starting_spark(environment) == "starting Spark (7 s the last time)"
    remember_start(environment, 0.01)
    assert starting_spark(environment) == "starting Spark (1 s the last time)"
    assert [file.name for file in tandem_cache(environment).iterdir()] == ["spark-start"]


@pytest.mark.parametrize("text", ["", "seven", "-1", "nan", "inf", "\xff", "9" * 400])
def test_what_is_no_number_of_seconds_is_not_told(text: str, tmp_path: Path) -> None:
    """A damaged file is as none."""
    file = tmp_path / "tandem" / "spark-start"
    file.parent.mkdir()
    file.write_bytes(text.encode("latin-1"))
    assert last_start_s({"XDG_CACHE_HOME": str(tmp_path)}) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """As in an image, and where a file has the folder's name."""
    (tmp_path / "tandem").write_text("a file")
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    remember_start(environment, 5.0)
    assert last_start_s(environment) is None


def test_a_relative_cache_folder_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XDG_CACHE_HOME has to be absolute."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tandem_cache({"XDG_CACHE_HOME": "cache"}) == tandem_cache({}) == tmp_path / ".cache" / "tandem"
