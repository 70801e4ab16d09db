"""What Spark's Python workers log: one form with the driver, escaped, and without secrets."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from pyspark import cloudpickle

from tandem.sink.process import log, safe_text, sourced_secret
from tandem.spark_jobs.spark.worker_log import logged

ROOT = Path(__file__).parents[4]
SECRET, OF_THE_SDK = "the-secret-key-91aa", "the-key-of-the-sdk-07"
_OVER_RDDS = {"map", "flatMap", "mapPartitions", "foreach", "foreachPartition", "mapPartitionsWithIndex"}


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    log.reset()
    yield
    log.reset()


def _work(secret: str, number: int) -> int:
    structlog.get_logger("tandem.worker").warning(
        "a key \x1b[31mred", value=f"{secret} \x1b]0;x", other=f"{OF_THE_SDK}\r\n2026 forged"
    )
    structlog.get_logger("tandem.worker").info("nobody asked for this")
    logging.getLogger("kafka.conn").error("the client's own line")
    return number + 1


def _in_another_process(secret: str) -> str:
    """Return what a worker writes that gets `_work` pickled, as Spark does it."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        pickled = cloudpickle.dumps((logged(_work), secret))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    script = "import pickle, sys; work, secret = pickle.load(sys.stdin.buffer); [work(secret, n) for n in (1, 2)]"
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickled,
        capture_output=True,
        env={**os.environ, "AWS_SECRET_ACCESS_KEY": OF_THE_SDK, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert done.stdout == b""
    return done.stderr.decode()


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_worker_logs_as_the_driver_does(form: log.Format, tmp_path: Path) -> None:
    """Level and form are the driver's, and what it bound; no control character, no secret, at whatever place it was."""
    (tmp_path / "secret").write_text(SECRET)
    log.configure(level="warning", fmt=form, stream=io.StringIO())
    log.bind(pair="orders")
    text = _in_another_process(sourced_secret.of_file(SECRET, key="store.secret_access_key", path=tmp_path / "secret"))
    lines = text.splitlines()
    assert len(lines) == 2, text
    assert SECRET not in text
    assert OF_THE_SDK not in text
    assert not any(not char.isprintable() for line in lines for char in line)
    assert all("orders" in line and "red" in line for line in lines)
    if form == "json":
        assert json.loads(lines[0])["level"] == "warning"


def test_a_worker_logs_json_unless_told_otherwise() -> None:
    """A driver that configured nothing, as one that embeds Tandem."""
    text = _in_another_process("no secret")
    assert [json.loads(line)["event"] for line in text.splitlines() if "red" in line] == ["a key \x1b[31mred"] * 2


def test_the_data_source_leaves_a_users_own_logging_alone() -> None:
    """Only structlog gets a form, and only where nobody gave it one."""
    import logging  # noqa: PLC0415 - the state of it is what is tested

    handlers = list(logging.getLogger().handlers)
    safe_text.register_secrets([SECRET])
    stream = io.StringIO()
    log.configure_unless_done(stream)
    structlog.get_logger().warning("a key \x1b[31mred", value=SECRET)
    structlog.get_logger().info("nobody asked for this")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["value"] == "********"
    assert line.isprintable()
    assert logging.getLogger().handlers == handlers
    own = [structlog.processors.KeyValueRenderer()]
    structlog.configure(processors=own)
    log.configure_unless_done(stream)
    assert structlog.get_config()["processors"] is own


def _sent_to_spark() -> Iterator[tuple[str, ast.expr]]:
    """Yield (place, argument) of each call that gives Spark a function for its workers."""
    for path in sorted((ROOT / "spark_jobs").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_call and node.func.attr in _OVER_RDDS and not _is_pool(node.func.value):
                yield f"{path.name}:{node.lineno}", node.args[0]


def _is_pool(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id == "pool"


def test_all_that_runs_on_spark_sets_up_its_log() -> None:
    """Each function for Spark's workers goes through `logged`."""
    found = dict(_sent_to_spark())
    assert len(found) >= 11
    bare = [
        place
        for place, argument in found.items()
        if not (isinstance(argument, ast.Call) and isinstance(argument.func, ast.Name) and argument.func.id == "logged")
    ]
    assert bare == []
