"""Start, failure and ports of a local server, with a small real server in place of the big ones."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tandem.controller.sandbox.errors import PortTakenError, ServerFailedError, ServerSilentError
from tandem.controller.sandbox.ports import LOOPBACK, first_outgoing_port, is_free, pick_ports
from tandem.controller.sandbox.server import LocalServer, ServerState

ECHO = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(sys.argv[2].encode())
    connection.close()
"""


class EchoServer(LocalServer):
    """Tells whoever connects its folder's name, which is what tells it from others."""

    title = "Echo"
    port_names = ("echo",)
    program = ECHO

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seized: list[socket.socket] = []
        self.seize = 0

    @property
    def log(self) -> Path:
        return self.folder / "echo.log"

    def _prepare(self) -> None:
        """Between picking and binding: this is where somebody else is faster, `seize` times."""
        if self.seize:
            self.seize -= 1
            self.seized.append(socket.create_server((LOOPBACK, self.ports["echo"])))

    def _command(self) -> list[str]:
        return [sys.executable, "-c", self.program, str(self.ports["echo"]), self.folder.name]

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def answers(self) -> bool:
        """Whether it says its name. Whoever was faster takes the connection and says nothing: that is soon clear."""
        try:
            with socket.create_connection(
                (LOOPBACK, self.ports["echo"]), timeout=0.5 if self.seized else 10
            ) as connection:
                return connection.recv(100) == self.folder.name.encode()
        except OSError:
            return False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EchoServer]:
    """An echo server, stopped at the end."""
    server = EchoServer(tmp_path / "echo")
    yield server
    server.stop()
    for taken in server.seized:
        taken.close()


def state_of(server: LocalServer) -> ServerState:
    """Return the state at this moment; a plain attribute would be taken not to change."""
    return server.state


def test_states_of_a_life(server: EchoServer) -> None:
    """Running, suspended, running, dead, running, stopped; the port is the same throughout."""
    server.start()
    ports = server.ports
    assert state_of(server) is ServerState.RUNNING
    server.suspend()
    assert state_of(server) is ServerState.SUSPENDED
    server.resume()
    assert state_of(server) is ServerState.RUNNING
    server.kill()
    assert state_of(server) is ServerState.DEAD
    server.start()
    assert state_of(server) is ServerState.RUNNING
    server.restart()
    assert state_of(server) is ServerState.RUNNING
    assert server.ports == ports
    server.stop()
    server.stop()
    assert state_of(server) is ServerState.STOPPED


def test_start_again_changes_nothing(server: EchoServer) -> None:
    """A running server keeps its process; a suspended one goes on."""
    server.start()
    process = server.process
    server.start()
    server.suspend()
    server.start()
    assert state_of(server) is ServerState.RUNNING
    assert server.process == process


def test_somebody_faster_costs_another_port(server: EchoServer) -> None:
    """A port that is taken between picking and binding is replaced, without anybody noticing."""
    server.seize = 2
    server.start()
    assert state_of(server) is ServerState.RUNNING
    assert server.ports["echo"] not in {taken.getsockname()[1] for taken in server.seized}


def test_somebody_always_faster(server: EchoServer) -> None:
    """After a few tries it gives up, and nothing runs."""
    server.seize = 99
    with pytest.raises(PortTakenError, match="TDM-D030"):
        server.start()
    assert not server.running


def test_known_port_taken_by_somebody_else(server: EchoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that clients know by its port does not silently move; the message names the port."""
    monkeypatch.setattr("tandem.controller.sandbox.server._PORT_WAIT_S", 0.3)
    server.start()
    server.kill()
    port = server.ports["echo"]
    with socket.create_server((LOOPBACK, port)), pytest.raises(PortTakenError, match=f"port {port} "):
        server.start()
    server.start()
    assert server.ports["echo"] == port


def test_a_server_that_ends_by_itself(server: EchoServer) -> None:
    """The message holds its last words and the place of its log, and no older words."""
    server.start()
    server.stop()
    server.program = "import sys; sys.exit('no space left on the moon')"
    with pytest.raises(ServerFailedError, match="no space left on the moon") as raised:
        server.start()
    assert str(server.log) in str(raised.value)
    assert "listening" not in str(raised.value)
    assert state_of(server) is ServerState.STOPPED


def test_a_server_that_never_answers(server: EchoServer) -> None:
    """It is ended, and the message names its log."""
    server.program = "import time; time.sleep(60)"
    with pytest.raises(ServerSilentError, match=r"did not answer within 1 s .*echo\.log"):
        server.start(timeout_s=1.0)
    assert not server.running
    assert server.process is None


def test_an_answer_of_another_server_does_not_count(tmp_path: Path) -> None:
    """Somebody came between the look at the port and our bind, and answers as ours would: ours is not up."""

    class Unlucky(EchoServer):
        def _await_ports(self) -> None:
            """The port was free a moment ago."""

    with ExitStack() as stack:
        other, ours = EchoServer(tmp_path / "other"), Unlucky(tmp_path / "ours")
        stack.callback(other.stop)
        stack.callback(ours.stop)
        other.start()
        ours._ports = dict(other.ports)
        with pytest.raises(PortTakenError):
            ours.start()


def test_a_long_log_is_put_aside(server: EchoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start renames a log that has grown too long, so a sandbox does not fill the disk over the months."""
    monkeypatch.setattr("tandem.controller.sandbox.server._LOG_LIMIT_BYTES", 100)
    server.log.parent.mkdir(parents=True)
    server.log.write_text("x" * 101, encoding="ascii")
    server.start()
    assert server.log.read_text(encoding="ascii") == "listening\n"
    assert server.log.with_name("echo.log.1").exists()


def test_picked_ports_are_distinct_free_and_not_for_outgoing_connections() -> None:
    """Ports in the range of outgoing connections could be used up by the clients of the very server."""
    ports = pick_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) and port < first_outgoing_port() for port in ports)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_listener_makes_a_port_taken(address: str) -> None:
    """On loopback, or on all addresses."""
    (port,) = pick_ports(1)
    with socket.create_server((address, port)):
        assert not is_free(port)
    assert is_free(port)


@pytest.mark.parametrize(
    ("content", "first"), [("1024\t65535\n", 1024), ("", 32768), ("nonsense", 32768), (None, 32768)]
)
def test_first_outgoing_port(tmp_path: Path, content: str | None, first: int) -> None:
    """As the kernel says; its default where that can't be read."""
    file = tmp_path / "range"
    if content is not None:
        file.write_text(content, encoding="ascii")
    assert first_outgoing_port(file) == first
