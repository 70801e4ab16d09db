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

import pytest

_ROOT = Path(__file__).parents[2]
_COMMAND = """
import json, os, sys, time
from functools import partial
from tandem.sink.store import StoreSettings
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.spark.session import session

def work(address, ballast, number):
    return number

master, folder = sys.argv[1:]
address = StoreAddress(
    root="s3://bucket/pair",
    settings=StoreSettings(access_key_id="AKIA", secret_access_key=os.environ["CANARY"]),
)
extra = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.dir": f"file://{folder}",
    "spark.local.dir": f"{folder}/local",
}
if master.startswith("local-cluster"):
    extra |= {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
began = time.monotonic()
with session(master, name="private", extra=extra) as spark:
    context = spark.sparkContext
    seconds = time.monotonic() - began
    assert context.parallelize(range(2), 2).map(partial(work, address, os.urandom(2 << 20))).collect() == [0, 1]
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
    _look(tmp_path, "local[2,4]")


@pytest.mark.parametrize("master", ["local-cluster[1,1,1024]"])
def test_executors_of_their_own_are_guarded_too(tmp_path: Path, master: str) -> None:
    """Where Spark makes no secret by itself the session makes one, and executors get it unseen."""
    _look(tmp_path, master)


def _look(folder: Path, master: str) -> None:
    canary = secrets.token_hex(24)
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, master, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env={**os.environ, "CANARY": canary, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
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
        assert not any(canary.encode() in taken for taken in found.values()), "the store's key was read"
        assert found == dict.fromkeys(found, b"")
        lines = {path: _read(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
        assert any(b"PythonGatewayServer" in text or b"pyspark-shell" in text for text in lines.values())
        spilled = [path for path in (folder / "local").rglob("*") if path.is_file()]
        assert [str(path) for path in spilled if canary.encode() in _read(path)] == []
        assert told["key"]
        for secret in (canary, told["key"]):
            assert [str(path) for path, text in lines.items() if secret.encode() in text] == []
    finally:
        err = process.communicate("", timeout=60)[1]
    assert process.returncode == 0, err
    for key in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        assert told["conf"][key] == "true"
    assert told["web"] is None
    events = [path for path in folder.rglob("*") if path.is_file()]
    assert any(b"SparkListenerEnvironmentUpdate" in _read(path) for path in events)
    for secret in (canary, told["key"]):
        assert secret not in err
        assert not any(secret.encode() in _read(path) for path in events)


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
