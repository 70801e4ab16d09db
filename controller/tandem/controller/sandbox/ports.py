"""Free TCP ports on loopback.

Ports are picked below the kernel's range for outgoing connections. In that range a client that keeps reconnecting to a
stopped server may get the server's own port as its source port and connect to itself, and the server can't restart.
A picked port is not reserved: the code that binds it must handle PortTakenError.
"""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

from tandem.controller.sandbox.errors import PortTakenError

LOOPBACK = "127.0.0.1"
_LOWEST = 10_000
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS = 1_000


def first_outgoing_port(range_file: Path = _RANGE_FILE) -> int:
    """Return the lowest port that the kernel uses for outgoing connections; Linux's default if it can't be read."""
    with suppress(OSError, ValueError, IndexError):
        return int(range_file.read_text(encoding="ascii").split()[0])
    return 32_768


def is_free(port: int) -> bool:
    """Return whether a server could listen on `port` of loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # The same socket option as servers: connections in TIME_WAIT don't prevent binding, a listener does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def pick_ports(count: int) -> tuple[int, ...]:
    """Return `count` distinct ports that are free now. Raises PortTakenError if too few are free."""
    highest = first_outgoing_port()
    if highest - _LOWEST < 1_000:  # the kernel uses nearly all ports for outgoing connections
        highest = 65_536
    picked: list[int] = []
    for _ in range(_ATTEMPTS):
        if len(picked) == count:
            break
        port = random.randrange(_LOWEST, highest)  # noqa: S311 - not for secrecy; random so that two pickers rarely meet
        if port not in picked and is_free(port):
            picked.append(port)
    if len(picked) < count:
        raise PortTakenError(
            f"found only {len(picked)} of {count} free ports on {LOOPBACK} between {_LOWEST} and {highest}",
            code="TDM-D020",
            remedy="stop what holds them, see `ss -ltn`",
        )
    return tuple(picked)
