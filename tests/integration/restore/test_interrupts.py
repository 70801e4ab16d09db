"""Ctrl-C while Spark is at work: the command ends, with 130 and without an error, and leaves no JVM behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_BUSY = """
import sys, time
from tandem.controller.cli import main
from tandem.spark_jobs.spark.session import session

def work(*_, **__):
    with session("local[1]", name="test") as spark:
        print("at work", flush=True)
        begun = sys.argv[1]
        spark.sparkContext.parallelize([1], 1).map(lambda _: (open(begun, "w").close(), time.sleep(600))).count()

main._command = lambda package: type("Command", (), {"main": staticmethod(work)})
sys.exit(main.run([]))
"""


@pytest.mark.spark
def test_a_spark_job_is_interrupted(tmp_path: Path) -> None:
    """The signal comes while the driver waits for a task that would take ten minutes."""
    script = tmp_path / "busy.py"
    script.write_text(_BUSY)
    begun = tmp_path / "begun"
    process = subprocess.Popen(
        [sys.executable, str(script), str(begun)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        deadline = time.monotonic() + 90
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert begun.exists(), "the task did not begin"
        time.sleep(1.0)  # the driver says nothing when it begins to wait
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "error: " not in err
    deadline = time.monotonic() + 30
    while _alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not _alive(process.pid), "a process of its group goes on"


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
