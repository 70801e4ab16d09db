"""The class archive of Spark's JVM: made when the first session ends, used by the next, harmless if damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

_PROGRAM = """
from tandem.spark_jobs.spark.session import session
with session("local[1]", name="classes") as spark:
    print(spark.sparkContext.parallelize([1, 2], 1).sum())
"""
_MADE_S = 300.0
_FROM_ARCHIVE = "shared objects file (top)"


def _run(folder: Path, *, switch: str | None = None) -> tuple[tuple[int, str, str], int]:
    """Run a session with the cache in `folder`; return exit code, stdout and stderr, and classes from the archive."""
    loaded = folder / "loaded.log"
    loaded.unlink(missing_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
    environ |= {"XDG_CACHE_HOME": str(folder), "SPARK_SUBMIT_OPTS": f"-Xlog:class+load:file={loaded}"}
    environ |= {} if switch is None else {"TANDEM_CLASS_ARCHIVE": switch}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environ, capture_output=True, text=True, check=False, timeout=180
    )
    return (done.returncode, done.stdout, done.stderr), loaded.read_text().count(_FROM_ARCHIVE)


@pytest.mark.slow
def test_sessions_start_with_an_archive(tmp_path: Path) -> None:
    """Whatever becomes of the archive, a session says the same; whole, it gives thousands of classes."""
    classes = tmp_path / "tandem" / "classes"
    plain, count = _run(tmp_path, switch="0")
    assert plain[:2] == (0, "3\n")
    assert (count, classes.exists()) == (0, False)
    assert _run(tmp_path) == (plain, 0)
    end = time.monotonic() + _MADE_S
    while not [*classes.glob("*.args")]:
        assert time.monotonic() < end
        assert not [*classes.glob("*.failed")]
        time.sleep(0.2)
    said, count = _run(tmp_path)
    assert said == plain
    assert count > 5_000
    (archive,) = classes.glob("*.jsa")
    size = archive.stat().st_size
    with archive.open("r+b") as file:
        file.seek(size // 2)
        file.write(os.urandom(4096))
    assert _run(tmp_path) == (plain, 0)
    os.truncate(archive, size // 2)
    (classes / f"{archive.stem}.failed").touch()  # so that this session's end makes no other
    assert _run(tmp_path) == (plain, 0)
