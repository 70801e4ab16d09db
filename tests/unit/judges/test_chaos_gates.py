"""The gates of the chaos campaign do to traffic what their modes say."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from chaos.gates import Gate, Gates, Mode

from tandem.controller.sandbox.ports import LOOPBACK

PATIENCE_S = 10.0


class Echo:
    """A server that answers with what it was sent, and remembers it."""

    def __init__(self) -> None:
        self._listener = socket.create_server((LOOPBACK, 0))
        self.address = f"{LOOPBACK}:{self._listener.getsockname()[1]}"
        self.heard = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # a thread that waits in accept() keeps it open else
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            while data := client.recv(65536):
                self.heard += data
                client.sendall(data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    """A server behind the gate."""
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def gate(echo: Echo) -> Iterator[Gate]:
    with Gates() as gates:
        yield gates.open("test", lambda: echo.address)


def connect(gate: Gate) -> socket.socket:
    """A connection to the gate."""
    host, _, port = gate.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def ask(connection: socket.socket, words: bytes) -> bytes:
    """What comes back; b"" if the connection ended."""
    answer = b""
    try:
        connection.sendall(words)
        while len(answer) < len(words):
            data = connection.recv(65536)
            if not data:
                return b""
            answer += data
    except ConnectionError:
        return b""
    return answer


def test_open(gate: Gate) -> None:
    """Bytes pass unchanged in both directions, also many of them."""
    many = bytes(range(256)) * 4096
    with connect(gate) as one, connect(gate) as two:
        assert ask(one, b"hello") == b"hello"
        assert ask(two, many) == many


def test_cut(gate: Gate) -> None:
    """Connections end, new ones too, until it is open again."""
    with connect(gate) as before:
        assert ask(before, b"one") == b"one"
        gate.set(Mode.CUT)
        assert ask(before, b"two") == b""
    with connect(gate) as during:
        assert ask(during, b"three") == b""
    gate.set(Mode.OPEN)
    with connect(gate) as after:
        assert ask(after, b"four") == b"four"


def test_silent(gate: Gate, echo: Echo) -> None:
    """Nothing moves and nothing ends; what was on its way arrives late."""
    with connect(gate) as before, connect(gate) as during:
        assert ask(before, b"one") == b"one"
        gate.set(Mode.SILENT)
        before.sendall(b"two")
        during.sendall(b"three")
        before.settimeout(0.5)
        with pytest.raises(TimeoutError):
            before.recv(10)
        assert echo.heard == b"one"
        gate.set(Mode.OPEN)
        before.settimeout(PATIENCE_S)
        assert before.recv(10) == b"two"
        assert during.recv(10) == b"three"


def test_slow(gate: Gate) -> None:
    """Everything arrives, and takes its time."""
    gate.set(Mode.SLOW)
    many = b"x" * 20_000
    with connect(gate) as connection:
        began = time.monotonic()
        assert ask(connection, many) == many
        assert time.monotonic() - began > 0.4


def test_deaf(gate: Gate, echo: Echo) -> None:
    """The request arrives, the answer does not; the connection is gone, and nobody learns what became of it."""
    with connect(gate) as connection:
        assert ask(connection, b"one") == b"one"
        gate.set(Mode.DEAF)
        connection.sendall(b"two")
        deadline = time.monotonic() + PATIENCE_S
        while echo.heard != b"onetwo":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        gate.set(Mode.OPEN)
        assert ask(connection, b"three") == b""
    with connect(gate) as after:
        assert ask(after, b"four") == b"four"


def test_server_that_is_away(gate: Gate, echo: Echo) -> None:
    """A connection whose server does not listen ends at once, like one that is refused."""
    echo.close()
    with connect(gate) as connection:
        assert ask(connection, b"one") == b""
