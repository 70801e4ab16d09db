"""What other users of the machine, and of its network, get from the ports and files of a running Spark command."""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.pairs.kept_files import KeptFiles

_ROOT = Path(__file__).parents[3]
_COMMAND = """
import hashlib, json, os, sys, time
from functools import partial
from pathlib import Path
from tandem.sink.process import log, sourced_secret
from tandem.sink.store import StoreAccess
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.spark.session import session

def work(address, ballast, number):
    return hashlib.sha256(address.settings.secret_access_key.encode()).hexdigest()

def named(value):
    match source:
        case "variable":
            return sourced_secret.of_variable(value, key="store.secret_access_key", name="CANARY")
        case "file":
            return sourced_secret.of_file(value, key="store.secret_access_key", path=Path(folder, "canary"))
        case "typed":
            return sourced_secret.typed(value, key="store.secret_access_key")

log.configure(level="warning", fmt="json")
master, folder, source, opened = sys.argv[1:]
canary = Path(folder, "canary").read_text()
address = StoreAddress(
    root="s3://bucket/pair",
    settings=StoreAccess(access_key_id="AKIA", secret_access_key=named(canary)),
)
extra = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.dir": f"file://{folder}",
    "spark.local.dir": f"{folder}/local",
}
if opened:
    extra |= dict.fromkeys(
        ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"), "false"
    )
    extra |= dict.fromkeys(("spark.broadcast.compress", "spark.shuffle.compress", "spark.rdd.compress"), "false")
if master.startswith("local-cluster"):
    extra |= {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
began = time.monotonic()
with session(master, name="private", extra=extra) as spark:
    context = spark.sparkContext
    seconds = time.monotonic() - began
    expected = [hashlib.sha256(canary.encode()).hexdigest()] * 2
    assert context.parallelize(range(2), 2).map(partial(work, address, os.urandom(2 << 20))).collect() == expected
    tasks = [(number, address) for number in range(2)]
    shuffled = context.parallelize(tasks, 2).partitionBy(2).map(lambda task: work(task[1], b"", task[0])).collect()
    assert shuffled == expected
    hadoop = context._jvm.org.apache.hadoop
    held = hadoop.security.UserGroupInformation.getCurrentUser().getCredentials().getSecretKey(
        hadoop.io.Text("sparkCookie")
    )
    blocks = context._jsc.sc().getExecutorMemoryStatus().keySet().mkString(",")
    conf = dict(context.getConf().getAll())
    key = conf.pop("spark.authenticate.secret", None) or (bytes(held).decode() if held else None)
    print(json.dumps({
        "seconds": seconds,
        "conf": conf,
        "ports": [int(place.rpartition(":")[2]) for place in blocks.split(",")] + [int(conf["spark.driver.port"])],
        "app": context.applicationId,
        "key": key,
        "web": context.uiWebUrl,
    }), flush=True)
    sys.stdin.read()
"""


def test_a_running_command_tells_nobody(tmp_path: Path) -> None:
    """A client without the secret gets no block and no answer, and no process or file of Spark shows the secret."""
    told, found, err = _look(tmp_path, "local[2,4]", "typed")
    _judge_private(told, found)
    assert "travels" not in err


@pytest.mark.parametrize("source", ["typed", "variable"])
def test_executors_of_their_own_are_guarded_too(tmp_path: Path, source: str) -> None:
    """Where Spark makes no secret by itself the session makes one, and executors get it unseen.

    What is typed into the configuration travels to them, and a warning says so.
    """
    told, found, err = _look(tmp_path, "local-cluster[1,1,1024]", source)
    _judge_private(told, found)
    assert ("a secret travels with Spark's tasks" in err) == (source == "typed")


@pytest.mark.parametrize("source", ["typed", "variable", "file"])
def test_tasks_hold_no_secret(tmp_path: Path, source: str) -> None:
    """Strangers read the tasks of a session that the user has opened: neither these nor Spark's files hold a secret."""
    _, found, err = _look(tmp_path, "local[2,4]", source, opened=True)
    assert any(b"StoreAddress" in taken for taken in found.values()), "tasks were read"
    assert "other users can read records" in err
    assert "travels" not in err


def _judge_private(told: dict[str, Any], found: dict[tuple[int, int], bytes]) -> None:
    assert found == dict.fromkeys(found, b"")
    for key in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        assert told["conf"][key] == "true"
    assert told["key"]


def _look(
    folder: Path, master: str, source: str, *, opened: bool = False
) -> tuple[dict[str, Any], dict[tuple[int, int], bytes], str]:
    """Return what the command told, what a stranger got of its blocks, and its log; the secret is nowhere in them."""
    canary = secrets.token_hex(24)
    (folder / "canary").write_text(canary)
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with KeptFiles(folder / "local", folder / "kept") as kept:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, master, str(folder), source, "opened" * opened],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env=environ | ({"CANARY": canary} if source == "variable" else {}),
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            told = json.loads(line)
            sys.stderr.write(f"{master}: started in {told['seconds']:.2f} s\n")
            found = {
                (port, number): _take(port, told["app"], f"broadcast_{number}_piece0")
                for port in told["ports"]
                for number in range(6)
            }
            lines = {path: _read(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
            environments = [path for path in Path("/proc").glob("[0-9]*/environ") if canary.encode() in _read(path)]
        finally:
            err = process.communicate("", timeout=60)[1]
    assert process.returncode == 0, err
    assert any(b"PythonGatewayServer" in text or b"pyspark-shell" in text for text in lines.values())
    assert not any(canary.encode() in taken for taken in found.values()), "the store's key was read"
    # Only its user, or root, reads a process's environment, where what is typed is handed on.
    assert bool(environments) == (source == "variable" or (source == "typed" and master.startswith("local[")))
    assert told["web"] is None
    assert any("pyspark" in str(path) or "blockmgr" in str(path) for path in kept.names), "files of Spark were kept"
    files = [path for path in folder.rglob("*") if path.is_file() and path != folder / "canary"]
    assert any(b"SparkListenerEnvironmentUpdate" in _read(path) for path in files)
    for secret in filter(None, (canary, told["key"])):
        assert [str(path) for path, text in lines.items() if secret.encode() in text] == []
        assert secret not in err
        assert [str(path) for path in files if secret.encode() in _read(path)] == []
    return told, found, err


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


# --- a client of Spark's transport protocol ---------------------------------------------------------------------------

_CHUNK_FETCH_REQUEST, _CHUNK_FETCH_SUCCESS, _RPC_REQUEST, _RPC_RESPONSE = 0, 1, 3, 4


def _take(port: int, app: str, block: str) -> bytes:
    """Return the bytes of a block, as whoever asks without a word gets them; none if that is refused."""
    with socket.create_connection(("127.0.0.1", port), 10) as stream:
        stream.settimeout(10)
        open_blocks = b"\0" + _text(app) + _text("driver") + struct.pack(">i", 1) + _text(block)
        _send(stream, struct.pack(">bqi", _RPC_REQUEST, 7, len(open_blocks)) + open_blocks)
        answer = _receive(stream)
        if not answer or answer[0] != _RPC_RESPONSE:
            return b""
        handle, chunks = struct.unpack_from(">qi", answer, 1 + 8 + 4 + 1)
        assert chunks == 1
        _send(stream, struct.pack(">bqi", _CHUNK_FETCH_REQUEST, handle, 0))
        answer = _receive(stream)
        return answer[13:] if answer and answer[0] == _CHUNK_FETCH_SUCCESS else b""


def _text(value: str) -> bytes:
    return struct.pack(">i", len(value)) + value.encode()


def _send(stream: socket.socket, message: bytes) -> None:
    stream.sendall(struct.pack(">q", len(message) + 8) + message)


def _receive(stream: socket.socket) -> bytes:
    """Return the next message, or nothing if the other side hangs up, or says nothing."""
    try:
        head = _exactly(stream, 8)
        return _exactly(stream, struct.unpack(">q", head)[0] - 8) if head else b""
    except OSError:
        return b""


def _exactly(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = stream.recv(size - len(data))
        if not more:
            return b""
        data += more
    return data
