"""The configuration that the chart renders, in two processes as in its two pods: by the file and the environment.

Only addresses, the topic and the place in the bucket are this machine's; they come by the environment as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from chart.rendering import GOLDEN, container, objects, one
from support.clusters.topics import TopicMaker

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import pick_ports
from tandem.controller.sandbox.s3 import S3Server

_MAIN = "import sys; from tandem.controller.cli.main import main; sys.exit(main())"
_WAIT_S = 90.0


@contextmanager
def _running(environ: dict[str, str], log: Path, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-c", _MAIN, *arguments], env=environ, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _answer(port: int, path: str) -> int:
    """Return the status of an answer; 0 if nobody listens yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.integration
def test_both_pods_get_ready_whoever_is_active(
    kafka: KafkaServer, s3: S3Server, make_topic: TopicMaker, bucket_root: str, tmp_path: Path
) -> None:
    """The probes that the StatefulSet names answer; both are ready, one is Active, the other one Passive."""
    documents = objects((GOLDEN / "try-out.yaml").read_text())
    pod = container(one(documents, "StatefulSet")["spec"]["template"]["spec"])
    file = tmp_path / "tandem.yaml"
    file.write_text(one(documents, "ConfigMap")["data"]["tandem.yaml"])
    secret = {**one(documents, "Secret")["stringData"]}
    assert set(secret) == {"TANDEM_STORE__ACCESS_KEY_ID", "TANDEM_STORE__SECRET_ACCESS_KEY"}
    topic = make_topic(partitions=2)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TANDEM_"))} | {
        "TANDEM_CONFIG": str(file),
        "TANDEM_STORE__ACCESS_KEY_ID": s3.key.access_key,
        "TANDEM_STORE__SECRET_ACCESS_KEY": s3.key.secret_key,
        "TANDEM_STORE__ENDPOINT_URL": s3.endpoint_url,
        "TANDEM_STORE__ROOT": bucket_root,
        "TANDEM_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap,
        "TANDEM_TOPICS__INCLUDE": topic,
        "TANDEM_COORDINATION__TOPIC": f"{topic}-coordination",
    }
    ports = dict(zip("ab", pick_ports(2), strict=True))
    logs = {name: tmp_path / f"{name}.log" for name in ports}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                _running(
                    {**environ, "TANDEM_INSTANCE": name, "TANDEM_HTTP__LISTEN": f"127.0.0.1:{port}"},
                    logs[name],
                    pod["args"],
                )
            )
            for name, port in ports.items()
        ]
        ready = pod["readinessProbe"]["httpGet"]["path"]
        deadline = time.monotonic() + _WAIT_S
        while not (
            all(_answer(port, ready) == 200 for port in ports.values())
            and _answer(ports["a"], "/active") == 200
            and _answer(ports["b"], "/passive") == 200
        ):
            assert all(process.poll() is None for process in processes), _words(logs)
            assert time.monotonic() < deadline, _words(logs)
            time.sleep(0.2)
        assert {_answer(port, pod["livenessProbe"]["httpGet"]["path"]) for port in ports.values()} == {200}


def _words(logs: dict[str, Path]) -> str:
    return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs.values())
