"""Health over HTTP."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from tandem.backup_avro.errors import ConfigError
from tandem.controller.decision.observation import Role
from tandem.controller.http.health import Health, serve
from tandem.controller.status.instance_state import InstanceState, PipelineState
from tandem.sink.pipeline import Phase

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


class Picture:
    """What the server is told."""

    def __init__(self) -> None:
        self.health = Health(
            role=Role.PASSIVE,
            ticked_s=0.1,
            alive_within_s=60.0,
            state=InstanceState(pair="p", instance="a", incarnation="i", role=Role.PASSIVE, ready=True),
        )


@pytest.fixture
def served() -> Iterator[tuple[str, Picture]]:
    picture = Picture()
    server = serve(("127.0.0.1", 0), lambda: picture.health)
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", picture
    finally:
        server.shutdown()
        server.server_close()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("path", "health", "status"),
    [
        ("/livez", (Role.PASSIVE, False, 1.0), 200),
        ("/livez", (Role.ACTIVE, True, 61.0), 503),
        ("/readyz", (Role.PASSIVE, True, 1.0), 200),
        ("/readyz", (Role.PASSIVE, False, 1.0), 503),
        ("/readyz", (Role.ACTIVE, True, 61.0), 503),
        ("/active", (Role.ACTIVE, True, 1.0), 200),
        ("/active", (Role.CATCH_UP, True, 1.0), 503),
        ("/passive", (Role.PASSIVE, True, 1.0), 200),
        ("/passive", (Role.ACTIVE, True, 1.0), 503),
    ],
)
def test_probes(served: tuple[str, Picture], path: str, health: tuple[Role, bool, float], status: int) -> None:
    """Each probe asks one thing: does the loop turn, is the role known, which role is it."""
    url, picture = served
    role, ready, ticked_s = health
    state = replace(picture.health.state, ready=ready)
    picture.health = replace(picture.health, role=role, state=state, ticked_s=ticked_s)
    code, text = get(url + path + "?from=kubelet")
    assert code == status
    assert role.value in text


def test_status_is_json_and_other_paths_say_what_there_is(served: tuple[str, Picture]) -> None:
    """The status is a document like those of commands; a wrong path names the right ones."""
    url, picture = served
    pipeline = PipelineState(
        generation=3,
        phase=Phase.READING,
        partitions=2,
        base_remaining=5,
        lag_records=7,
        records=11,
        bytes=13,
        commits=17,
        trouble=("slow",),
        error=None,
    )
    state = replace(picture.health.state, ready=True, pipelines=(pipeline,), rolled_back=("3:1:abc",))
    picture.health = replace(picture.health, state=state)
    code, text = get(url + "/status")
    found = json.loads(text)
    assert (code, found["schemaVersion"], found["kind"], found["role"]) == (200, 1, "Instance", "Passive")
    assert found["rolledBack"] == ["3:1:abc"]
    assert found["pipelines"] == [
        {
            "generation": 3,
            "phase": "reading",
            "partitions": 2,
            "baseRemaining": 5,
            "lagRecords": 7,
            "records": 11,
            "bytes": 13,
            "commits": 17,
            "trouble": ["slow"],
            "error": None,
        }
    ]
    jsonschema.validate(found, json.loads((SCHEMAS / "http-status.json").read_text()))
    code, text = get(url + "/metricz")
    assert code == 404
    assert "/livez" in text


def test_metrics_are_answered_as_the_scraper_asks() -> None:
    """The Accept header goes to whoever makes the page; its content type comes back. It needs no picture of health."""
    asked: list[str] = []

    def look() -> Health:
        raise AssertionError("probes look, scrapes don't")

    def metrics(accept: str) -> tuple[bytes, str]:
        asked.append(accept)
        return b"tandem_ready 1\n", "text/plain; version=0.0.4; charset=utf-8"

    server = serve(("127.0.0.1", 0), look, metrics=metrics)
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/metrics"
        request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert (answer.status, answer.read()) == (200, b"tandem_ready 1\n")
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert asked == ["application/openmetrics-text"]
    finally:
        server.shutdown()
        server.server_close()


needs_v6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("", "127.0.0.1"),
        pytest.param("", "[::1]", marks=needs_v6),
        pytest.param("::", "[::1]", marks=needs_v6),
        pytest.param("::", "127.0.0.1", marks=needs_v6),
        pytest.param("::1", "[::1]", marks=needs_v6),
        ("localhost", "127.0.0.1"),
    ],
)
def test_it_answers_over_ipv6_and_ipv4(host: str, asked: str) -> None:
    """A cluster's probes come to a pod's first address, of whichever family that is."""
    server = serve((host, 0), lambda: Picture().health)
    try:
        with urllib.request.urlopen(f"http://{asked}:{server.server_address[1]}/livez", timeout=5) as answer:
            assert answer.status == 200
    finally:
        server.shutdown()
        server.server_close()


def test_no_name_server_is_asked_for_a_name_that_nobody_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod whose name server is away must still be seen to live."""
    asked: list[object] = []
    monkeypatch.setattr(socket, "getfqdn", lambda *name: asked.append(name) or "somewhere")
    server = serve(("", 0), lambda: Picture().health)
    server.shutdown()
    server.server_close()
    assert not asked


@pytest.mark.parametrize(("host", "shown"), [("192.0.2.1", "192.0.2.1:80"), ("2001:db8::1", "[2001:db8::1]:80")])
def test_an_address_of_another_machine_is_a_configuration_error(host: str, shown: str) -> None:
    """The remedy is not another port."""
    with pytest.raises(ConfigError) as raised:
        serve((host, 80), lambda: Picture().health)
    assert f"http.listen: {shown} can't be had" in str(raised.value)
    assert raised.value.remedy == "write an address of this machine, or :80 for all of them"


def test_a_taken_port_is_a_configuration_error() -> None:
    """The message names the key and the remedy."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"http\.listen: 127\.0\.0\.1:\d+ can't be had"):
            serve(("127.0.0.1", taken.getsockname()[1]), lambda: Picture().health)
