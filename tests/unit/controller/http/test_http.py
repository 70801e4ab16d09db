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
from tandem.controller.http.server import HttpAnswer, HttpServer
from tandem.controller.status.instance_state import InstanceState, PipelineStatus
from tandem.sink.pipeline_report import Phase

SCHEMAS = Path(__file__).parents[4] / "docs" / "schemas"


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


def test_what_keeps_it_from_being_ready_is_said(served: tuple[str, Picture]) -> None:
    """To whoever asks by hand, and in the status document; no other probe repeats it."""
    url, picture = served
    state = replace(picture.health.state, ready=False, not_ready="the brokers have not answered for 75 s")
    picture.health = replace(picture.health, state=state)
    assert get(f"{url}/readyz") == (503, "no, role Passive: the brokers have not answered for 75 s\n")
    assert get(f"{url}/livez") == (200, "yes, role Passive\n")
    assert json.loads(get(f"{url}/status")[1])["notReady"] == "the brokers have not answered for 75 s"


def test_status_is_json_and_other_paths_say_what_there_is(served: tuple[str, Picture]) -> None:
    """The status is a document like those of commands; a wrong path names the right ones."""
    url, picture = served
    pipeline = PipelineStatus(
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
        aside=("too-long",),
    )
    state = replace(
        picture.health.state, ready=True, pipelines=(pipeline,), rolled_back=("3:1:abc",), restored=("orders.restored",)
    )
    picture.health = replace(picture.health, state=state)
    code, text = get(url + "/status")
    found = json.loads(text)
    assert (code, found["schemaVersion"], found["kind"], found["role"]) == (200, 1, "Instance", "Passive")
    assert found["rolledBack"] == ["3:1:abc"]
    assert found["restored"] == ["orders.restored"]
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
            "aside": ["too-long"],
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


def ask_as(server: HttpServer, path: str, *hosts: str) -> tuple[bytes, bytes]:
    """The status line and body of an answer to a request with these `Host` headers."""
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=5) as connection:
        headers = "".join(f"Host: {host}\r\n" for host in hosts)
        connection.sendall(f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0], body


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    """A server that is told of one name; its machine has two."""
    monkeypatch.setattr(socket, "gethostname", lambda: "tandem-0.here")
    monkeypatch.setattr(socket, "getfqdn", lambda: "tandem-0.here.example.com")
    server = serve(
        ("127.0.0.1", 0),
        lambda: Picture().health,
        {"/": lambda query: HttpAnswer(body=f"page {query}".strip())},
        lambda _: (b"metrics", "text/plain"),
        hosts=("Backup.Example.com",),
    )
    yield server
    server.shutdown()
    server.server_close()


def test_a_page_is_given_its_query(named: HttpServer) -> None:
    """As the client sent it; it is none of the path."""
    assert ask_as(named, "/?q=a%20b", "localhost") == (b"HTTP/1.0 200 OK", b"page q=a%20b")


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:8080", "10.1.2.3", "[::1]:8080", "[fd00::1]", "localhost", "LOCALHOST:8080", "tandem-0"),
        *("tandem-0.tandem.ns.svc:8080", "tandem.ns.svc.cluster.local", "box.local", "box.corp.internal.", "tandem:80"),
        *("tandem-0.here:8080", "tandem-0.here.example.com", "backup.example.com:443", "BACKUP.example.com."),
    ],
)
def test_it_answers_under_its_own_names(named: HttpServer, host: str) -> None:
    """Addresses, names inside of a cluster or a company, those of the machine, and those that are configured."""
    assert ask_as(named, "/", host) == (b"HTTP/1.0 200 OK", b"page")


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example.org", "10.1.2.3.evil.org", "example.com", "xbackup.example.com", "backup.example.com.evil.org"),
        *(
            "evil.org:80:80",
            "localhost.evil.org",
            "[::1].evil.org",
            "evil.org/localhost",
            "a b",
            "",
            "é",
            "svc.evil.org",
        ),
    ],
)
@pytest.mark.parametrize("path", ["/", "/status", "/metrics", "/nowhere"])
def test_it_does_not_answer_under_a_strangers_name(named: HttpServer, host: str, path: str) -> None:
    """A page of theirs that points its name to this server would read it in the browser of an operator."""
    status, body = ask_as(named, path, host)
    assert status.startswith(b"HTTP/1.0 421 ")
    assert body == b"this server does not answer under that name: ask by IP address, or add the name to http.hosts\n"


def test_each_of_several_host_headers_counts(named: HttpServer) -> None:
    """Nobody sends two but who hopes that only one is looked at. A request without any is none of a browser's."""
    assert ask_as(named, "/", "localhost", "evil.org")[0].startswith(b"HTTP/1.0 421 ")
    assert ask_as(named, "/") == (b"HTTP/1.0 200 OK", b"page")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/active", "/passive?from=balancer"])
def test_probes_are_answered_under_any_name(named: HttpServer, path: str) -> None:
    """A balancer may send the name that it is reached by; what it learns is one word."""
    assert ask_as(named, path, "lb.example.org")[0].split()[1] in {b"200", b"503"}
