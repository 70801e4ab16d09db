"""What the HTTP server lets a client do: two methods, a bounded request, a bounded time, a bounded crowd."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from support.pipeline.waiting import until

from tandem.controller.decision.observation import Role
from tandem.controller.http import server as http_server
from tandem.controller.http.health import Health, serve
from tandem.controller.http.host_names import HostNames
from tandem.controller.http.server import CONNECTIONS, REQUEST_BYTES, SPARE, HttpAnswer
from tandem.controller.status.instance_state import InstanceState

STATE = InstanceState(pair="p", instance="a", incarnation="i", ready=True)
HEALTH = Health(role=Role.PASSIVE, ticked_s=0.1, alive_within_s=60.0, state=STATE)
HEAD = b"GET /livez HTTP/1.1\r\nHost: here\r\n"


def fail(_: str) -> HttpAnswer:
    raise RuntimeError("inner workings")


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    pages = {
        "/": lambda _: HttpAnswer(body="<p>é</p>", kind="text/html", headers={"X-Frame-Options": "NO"}),
        "/bad": fail,
    }
    server = serve(("127.0.0.1", 0), lambda: HEALTH, pages)
    try:
        yield server.server_address[0], server.server_address[1]  # type: ignore[misc]  # an IPv4 address
    finally:
        server.shutdown()
        server.server_close()


def ask(
    address: tuple[str, int], method: str, path: str = "/livez", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    with closing(http.client.HTTPConnection(*address, timeout=20)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def raw(address: tuple[str, int], data: bytes) -> bytes:
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(data)
        return received(connection)


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes, however it does."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def test_head_is_get_without_a_body(address: tuple[str, int]) -> None:
    """Same status, same length, nothing after the headers."""
    status, headers, body = ask(address, "GET", "/")
    assert (status, headers["content-length"], body.decode()) == (200, str(len(body)), "<p>é</p>")
    status, headers, nothing = ask(address, "HEAD", "/")
    assert (status, headers["content-length"], nothing) == (200, str(len(body)), b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "BREW"])
def test_nothing_else_is_taken(address: tuple[str, int], method: str) -> None:
    """405 with what is allowed, on every path."""
    for path in ("/", "/status", "/nowhere"):
        status, headers, _ = ask(address, method, path)
        assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_a_method_is_refused_without_asking_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused requests are not counted as work: if they waited for the resolver, they would take the probes' places."""
    gate = threading.Event()
    monkeypatch.setattr(HostNames, "has", lambda *_: gate.wait(20))
    server = serve(("127.0.0.1", 0), lambda: HEALTH)
    address = (str(server.server_address[0]), int(server.server_address[1]))
    try:
        with socket.create_connection(address, timeout=5) as connection:
            connection.sendall(b"POST /status HTTP/1.1\r\nHost: tandem.example.com\r\n\r\n")
            assert received(connection).split(b" ")[1] == b"405"
    finally:
        gate.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("path", ["/", "/livez", "/status", "/nowhere", "/bad"])
def test_every_answer_is_guarded(address: tuple[str, int], path: str) -> None:
    """Not cached, not framed, not sniffed, no sources; nothing of Python's version."""
    _, headers, _ = ask(address, "GET", path)
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == ("NO" if path == "/" else "DENY"), "a page may say more than the rest"
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["server"].strip() == "tandem"


def test_a_page_that_fails_says_so(address: tuple[str, int]) -> None:
    """500, without a word of the fault, and the server goes on."""
    status, _, body = ask(address, "GET", "/bad")
    assert status == 500
    assert b"inner" not in body
    assert ask(address, "GET")[0] == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (HEAD + b"X: " + b"x" * REQUEST_BYTES + b"\r\n\r\n", b"431"),
        (b"GET /" + b"x" * REQUEST_BYTES + b" HTTP/1.1\r\n\r\n", b"431"),
        (HEAD + b"".join(b"X%d: x\r\n" % n for n in range(200)) + b"\r\n", b"431"),
        (b"GET\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
    ],
    ids=["long header", "long line", "many headers", "no path", "no such version", "TLS"],
)
def test_what_is_no_request_is_refused(address: tuple[str, int], request_: bytes, status: bytes) -> None:
    """An error with its name; nothing that was sent comes back."""
    answer = raw(address, request_)
    # Where more was sent than is read, the answer may be lost with the connection.
    assert answer.split(b" ")[1] == status if answer else len(request_) > REQUEST_BYTES
    assert b"xxx" not in answer
    assert ask(address, "GET")[0] == 200


def test_who_sends_slowly_is_cut_off(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts for the whole request: a byte now and then does not prolong it."""
    monkeypatch.setattr(http_server, "READ_S", 0.6)
    began = time.monotonic()
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(HEAD)
        connection.settimeout(0.1)
        try:
            while time.monotonic() - began < 15:
                connection.sendall(b"X")
                try:
                    if not connection.recv(100):
                        break
                except TimeoutError:
                    continue
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert 0.5 < time.monotonic() - began < 10


def test_a_crowd_of_slow_clients_keeps_no_probe_waiting(address: tuple[str, int]) -> None:
    """More connections than there may be, none of which ever sends its request: a probe is answered at once."""
    with ExitStack() as stack:
        crowd = [
            stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(2 * (CONNECTIONS + SPARE))
        ]
        for connection in crowd:
            connection.sendall(HEAD)
        began = time.monotonic()
        assert ask(address, "GET")[0] == 200
        assert time.monotonic() - began < http_server.READ_S
        assert received(crowd[0]) == b"", "the one that had waited for longest was told to go"
        crowd[-1].sendall(b"\r\n")
        assert b"200 OK" in received(crowd[-1]), "a later one is still served"


def test_a_crowd_that_takes_its_answers_slowly_keeps_no_probe_waiting() -> None:
    """Large pages that nobody reads: the one that has been taking its answer for longest makes room."""
    server = serve(("127.0.0.1", 0), lambda: HEALTH, {"/large": lambda _: HttpAnswer(body=b"x" * (8 << 20))})
    address = (str(server.server_address[0]), int(server.server_address[1]))
    try:
        with ExitStack() as stack:
            crowd = [socket.create_connection(address, timeout=20) for _ in range(CONNECTIONS + SPARE)]
            for connection in crowd:
                stack.enter_context(connection)
                connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            until(lambda: len(server._taking) == CONNECTIONS + SPARE)
            first = next(iter(server._taking)).getpeername()
            began = time.monotonic()
            assert [ask(address, "GET", path)[0] for path in ("/livez", "/readyz")] == [200, 200]
            assert time.monotonic() - began < http_server.WRITE_S / 2
            cut = next(connection for connection in crowd if connection.getsockname() == first)
            assert len(received(cut)) < 8 << 20
            whole = next(one for one in crowd if one.getsockname() == list(server._taking)[-1].getpeername())
            assert len(received(whole)) > 8 << 20, "another one is served to its end"
    finally:
        server.shutdown()
        server.server_close()


def test_when_all_are_being_answered_only_probes_are_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody for whom an answer is being made is cut off; one more page is refused, and a probe is answered."""
    monkeypatch.setattr(http_server, "CONNECTIONS", 2)
    gate = threading.Event()

    def slow(_: str) -> HttpAnswer:
        gate.wait(20)
        return HttpAnswer(body="done")

    server = serve(("127.0.0.1", 0), lambda: HEALTH, {"/slow": slow})
    address = (str(server.server_address[0]), int(server.server_address[1]))
    try:
        with ExitStack() as stack:
            busy = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(2)]
            for connection in busy:
                connection.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
            until(lambda: len(server._working) == 2)
            assert ask(address, "GET", "/slow")[0] == 503
            assert [ask(address, "GET", path)[0] for path in ("/livez", "/readyz?x")] == [200, 200]
            monkeypatch.setattr(http_server, "SPARE", 0)
            with socket.create_connection(address, timeout=20) as late:
                assert received(late) == b""
            gate.set()
            assert all(received(connection).endswith(b"done") for connection in busy)
        until(lambda: not server._open)
        assert ask(address, "GET")[0] == 200
    finally:
        gate.set()
        server.shutdown()
        server.server_close()
