"""Answers of a token endpoint that is broken, or means harm: refused in one line, in seconds and a few megabytes."""

from __future__ import annotations

import itertools
import json
import socket
import socketserver
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from support.servers.certificates import Authority
from support.servers.token_provider import TokenProvider

from tandem.backup_avro.errors import ConfigError
from tandem.controller.sandbox.ports import LOOPBACK
from tandem.sink.kafka.auth import token_endpoint
from tandem.sink.kafka.auth.oidc import OidcSettings
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError, ClusterUnreachableError

SECRET = "swordfish-in-the-sea"
WHERE = "https://id.example.org/token"
DEEP = b"[" * 400_000
LONGEST_S = 0.5


def settings(url: str) -> OidcSettings:
    """A client of that endpoint."""
    return OidcSettings(endpoint=url, client_id="tandem", client_secret=SECRET)


@pytest.mark.parametrize("said", ["60", "0.5", '"60"', "31622400"])
def test_lifetimes_that_are_believed(said: str) -> None:
    """Seconds, as a number or its digits, up to a year."""
    token = token_endpoint.token_of(200, f'{{"access_token": "abc", "expires_in": {said}}}'.encode(), WHERE)
    assert token.lifetime_s == float(said.strip('"'))


@pytest.mark.parametrize(
    "said",
    [
        "9" * 400,
        json.dumps("9" * 5_000),
        json.dumps("9" * 19),
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "true",
        "null",
        "[60]",
        "0",
        "-1",
        "31622401",
        json.dumps("٦٠"),
        json.dumps("²"),
        json.dumps(" 60"),
        json.dumps("1_0"),
        json.dumps("0"),
        '""',
    ],
)
def test_lifetimes_that_are_not(said: str) -> None:
    """With those that are no number of a sane size a token would never be renewed, or the reader ended by surprise."""
    with pytest.raises(ClusterAuthenticationError, match="TDM-K042") as caught:
        token_endpoint.token_of(200, f'{{"access_token": "abc", "expires_in": {said}}}'.encode(), WHERE)
    assert caught.value.remedy


@pytest.mark.parametrize("text", [DEEP, b'{"a":' * 200_000, b"9" * 5_000, b"\xff\xfe{}", b"null", b""])
def test_answers_that_are_no_document(text: bytes) -> None:
    """Nested without end, in another encoding, or something else: no token, whatever the status."""
    with pytest.raises(ClusterAuthenticationError, match="TDM-K041"):
        token_endpoint.token_of(200, text, WHERE)
    with pytest.raises(ClusterAuthenticationError, match=r"gives no token: 400 \("):
        token_endpoint.token_of(400, text, WHERE)


def test_a_token_of_nothing_is_none() -> None:
    """It is printable ASCII too."""
    with pytest.raises(ClusterAuthenticationError, match="TDM-K041"):
        token_endpoint.token_of(200, b'{"access_token": "", "expires_in": 60}', WHERE)


@contextmanager
def sending(
    begin: bytes, then: Iterable[bytes], *, pause_s: float = 0.02, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve an endpoint that answers each request with `begin` at once, and then with one piece after the other."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                asked = self.request if tls is None else tls.wrap_socket(self.request, server_side=True)
                request = b""
                # What was left unread would reset the connection.
                while b"CONNECT " not in request and b"=client_credentials" not in request:
                    piece = asked.recv(65_536)
                    if not piece:
                        return
                    request += piece
                asked.sendall(begin)
                for piece in then:
                    asked.sendall(piece)
                    time.sleep(pause_s)
                asked.close()

    with handling(Handler) as port:
        yield f"{'http' if tls is None else 'https'}://{LOOPBACK}:{port}/token"


@contextmanager
def handling(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    """Serve connections, each in a thread that nobody waits for."""

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server((LOOPBACK, 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class Relay(socketserver.BaseRequestHandler):
    """A proxy that connects to wherever it is asked to."""

    def handle(self) -> None:
        """Pass on what comes, in both directions."""
        _, address, _ = self.request.recv(65_536).decode().split(" ", 2)
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port))) as other:
            self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = Thread(target=self._pass_on, args=(other, self.request), daemon=True)
            back.start()
            self._pass_on(self.request, other)
            back.join()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while piece := one.recv(65_536):
                other.sendall(piece)
            other.shutdown(socket.SHUT_WR)


def trickle(piece: bytes) -> Iterator[bytes]:
    """A piece now and then, for half a minute: a reader that waits for the end fails, and is not stuck."""
    return itertools.repeat(piece, 1500)


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 1000000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
        (b"", b"H"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b""),
    ],
)
def test_a_trickle_is_cut_off(begin: bytes, piece: bytes) -> None:
    """Time-outs are for each read; the call has one for all of them, its three attempts together."""
    began = time.monotonic()
    with (
        sending(begin, trickle(piece)) as url,
        pytest.raises(ClusterUnreachableError, match=r"does not answer: it takes more than 0.5 s") as caught,
    ):
        token_endpoint.request_token(settings(url), longest_s=LONGEST_S)
    assert time.monotonic() - began < 15
    assert url in str(caught.value)
    assert caught.value.remedy


def test_a_proxy_that_trickles_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is any TLS."""
    began = time.monotonic()
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with sending(b"HTTP/1.1 200 OK\r\n", trickle(b"A: b\r\n")) as url:
        monkeypatch.setenv("https_proxy", url.removesuffix("/token"))
        with pytest.raises(ClusterUnreachableError, match=r"takes more than 0.5 s"):
            token_endpoint.request_token(settings(WHERE), longest_s=LONGEST_S)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("by_proxy", [False, True])
def test_the_limits_hold_in_tls_too(by_proxy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Straight, and through a proxy; what is sound comes through."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    authority = Authority("Tests")
    issued = authority.issue("endpoint", address=LOOPBACK)
    (tmp_path / "pem").write_text(issued.certificate + issued.key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "pem")
    body = b'{"access_token": "abc", "expires_in": 60}'
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    with ExitStack() as stack:
        if by_proxy:
            monkeypatch.setenv("https_proxy", f"http://{LOOPBACK}:{stack.enter_context(handling(Relay))}")
        for then, sound in (((body,), True), (trickle(b" "), False)):
            client = replace(settings(stack.enter_context(sending(head, then, tls=tls))), ca_pem=authority.pem)
            if sound:
                assert token_endpoint.request_token(client, longest_s=5.0).lifetime_s == 60
            else:
                with pytest.raises(ClusterUnreachableError, match=r"takes more than 0.5 s"):
                    token_endpoint.request_token(client, longest_s=LONGEST_S)


@pytest.mark.parametrize("proxy", ["me:hush@127.0.0.1:1", "ftp://me:hush@127.0.0.1:1", "http://me:hush@[1"])
def test_a_proxy_that_is_none(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that does not repeat it."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(ConfigError, match="proxy that the environment names for https://") as caught:
        token_endpoint.request_token(settings(WHERE))
    assert "hush" not in str(caught.value)


def test_an_answer_without_end_is_cut_off() -> None:
    """Also one that nobody wants, which is read to its end before the next attempt."""
    head = b"HTTP/1.1 503 No\r\nContent-Length: 1000000000\r\n\r\n"
    with (
        sending(head, itertools.repeat(bytes(1 << 20), 1_000), pause_s=0.0) as url,
        pytest.raises(ClusterUnreachableError, match=r"it sends more than 2097152 bytes"),
    ):
        token_endpoint.request_token(settings(url))


def test_no_server_says_how_long_to_wait() -> None:
    """Retry-After may name hours, and an event loop waits."""
    busy = b"HTTP/1.1 503 No\r\nRetry-After: 30\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    began = time.monotonic()
    with sending(busy, iter(())) as url, pytest.raises(ClusterUnreachableError, match="answers 503"):
        token_endpoint.request_token(settings(url))
    assert time.monotonic() - began < 20


def test_a_sound_answer_comes_through() -> None:
    """Well within the limits."""
    with TokenProvider(client_id="tandem", client_secret=SECRET, lifetime_s=77) as provider:
        assert token_endpoint.request_token(settings(provider.url), longest_s=5.0).lifetime_s == 77


def test_no_attempt_begins_after_the_end() -> None:
    """Time is told by the caller's clock."""
    times = itertools.chain([0.0, 1.0], itertools.repeat(21.0))
    with (
        sending(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", iter(())) as url,
        pytest.raises(ClusterUnreachableError, match="takes more than 20 s"),
    ):
        token_endpoint.request_token(settings(url), now=lambda: next(times))
