"""What the client reports about its connections explains a call that timed out, whenever it came."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigEntry  # type: ignore[attr-defined]  # public, but not marked for re-export
from support.clusters.admin_futures import answered

from tandem.sink.kafka.cluster import admin as cluster
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError, ClusterUnreachableError

_TIMED_OUT = KafkaError(KafkaError._TIMED_OUT, "Failed while waiting for controller")
_REFUSED = KafkaError(KafkaError._AUTHENTICATION, "Failed to retrieve OIDC token: invalid_client")
_DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")


class _Id:
    cluster_id = "c"


class _Client:
    """Answers as told, and has told its errors by when it is polled."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.tell: Callable[[KafkaError], None] = config["error_cb"]
        self.errors: deque[KafkaError] = deque()
        self.answers: deque[KafkaError | _Id] = deque()
        self.describe_configs: Callable[..., Any] | None = None

    def poll(self, _: float) -> None:
        while self.errors:
            self.tell(self.errors.popleft())

    def list_topics(self, **_: float) -> None:
        raise KafkaException(_TIMED_OUT)

    def describe_cluster(self, *, request_timeout: float) -> Future[_Id]:
        """Return the next answer."""
        assert request_timeout > 0
        return answered(self.answers.popleft())


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> _Client:
    """The client of the next ClusterAdmin."""
    made = _Client({"error_cb": None})

    def make(config: dict[str, Any]) -> _Client:
        made.tell = config["error_cb"]
        return made

    monkeypatch.setattr(cluster, "open_admin", make)
    return made


def _admin() -> ClusterAdmin:
    return ClusterAdmin({"bootstrap.servers": "b:9092"}, timeout_s=2)


class _Name(str):
    """A name that can be watched."""

    __slots__ = ("__weakref__",)


def test_names_of_settings_stay(client: _Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    monkeypatch.setattr(cluster, "_SETTINGS", set())  # another test of this process may have kept the same names

    def describe(resources: list[Any], **_: float) -> dict[Any, Future[dict[str, ConfigEntry]]]:
        nonlocal asked
        asked += 1
        futures: dict[Any, Future[dict[str, ConfigEntry]]] = {one: Future() for one in resources}
        for future in futures.values():
            names = [_Name("a.setting.that.no.code.names"), _Name("retention.ms")]
            seen.extend(weakref.ref(name) for name in names)
            future.set_result({name: ConfigEntry(name, "1") for name in names})
        return futures

    seen: list[weakref.ref[_Name]] = []
    client.describe_configs = describe
    admin = _admin()
    for _ in range(3):
        assert list(admin.config(["t"])["t"]) == ["retention.ms"]
    assert asked == 3
    assert [name() is not None for name in seen] == [True, True, False, False, False, False]


def test_a_refusal_that_came_between_two_calls_counts(client: _Client) -> None:
    """It is told every ten seconds: a call of eight with a pause of two would miss it for ever."""
    admin = _admin()
    client.answers.extend([_TIMED_OUT, _TIMED_OUT])
    with pytest.raises(ClusterUnreachableError):
        admin.cluster_id()
    client.errors.extend([_REFUSED, _DOWN])
    with pytest.raises(ClusterAuthenticationError, match="invalid_client"):
        admin.cluster_id()


def test_a_refusal_before_an_answer_is_over(client: _Client) -> None:
    """Who was answered since then was let in."""
    admin = _admin()
    client.errors.append(_REFUSED)
    client.answers.extend([_Id(), _TIMED_OUT])
    assert admin.cluster_id() == "c"
    with pytest.raises(ClusterUnreachableError):
        admin.cluster_id()


# A request that nobody waits for any more is reported on the client's own thread, and Python's collector runs there.
_LET_GO = """
import gc, socket, sys, threading
from tandem.sink.kafka.cluster.admin import ClusterAdmin

gc.disable()
silent = socket.create_server(("127.0.0.1", 0))
admin = ClusterAdmin({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"})
future = admin._admin.describe_cluster(request_timeout=1.0)
collected = threading.Event()
future.add_done_callback(lambda _: (gc.collect(), collected.set()))
if "close" in sys.argv:
    admin.kept = admin  # in a cycle, as an error's traceback may hold it
    admin.close()
del admin
print(collected.wait(5))
"""


@pytest.mark.parametrize("arguments", [[], ["close"]])
def test_no_client_is_destroyed_on_its_own_thread(arguments: list[str]) -> None:
    """It would end the process: `calling rd_kafka_destroy() from librdkafka owned thread is prohibited`."""
    done = subprocess.run(
        [sys.executable, "-c", _LET_GO, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[5],
    )
    # A client that is closed mostly tells of requests that it drops, but its own thread may have ended before.
    told = {"True\n", "False\n"} if arguments else {"True\n"}
    assert done.returncode == 0, done.stderr
    assert done.stdout in told, done.stderr
