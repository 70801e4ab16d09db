"""The host names under which the HTTP server answers: a check of each request's `Host` header.

An attacker's web page may resolve its own name to the address of this server (DNS rebinding) and then read, in the
browser of a person who opened it, pages that only that person's network may reach. Such a request has the attacker's
name in its `Host`. No attacker can own a name without a dot, an IP address, or a name with an ending that is used only
inside of a cluster or a company.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Collection
from typing import Final

_INSIDE: Final = (".svc", ".cluster.local", ".local", ".internal")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::[0-9]{0,5})?", re.ASCII)


class HostNames:
    """The names of this server, for any thread. `more` are the configured ones.

    The resolver is asked once for the machine's fully qualified name, and only when a request has a name that is not
    known otherwise: if the name servers are away, only that request waits for them.
    """

    def __init__(self, more: Collection[str] = ()) -> None:
        self._names = {_plain(name) for name in more}
        self._lock = threading.Lock()
        self._own: frozenset[str] | None = None

    def has(self, host: str) -> bool:
        """Return whether a request with this `Host` header, with or without a port, may be answered."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = _plain(found[1])
        known = "." not in name or name in self._names or name.endswith(_INSIDE) or _is_address(name.strip("[]"))
        return known or name in self._own_names()

    def _own_names(self) -> frozenset[str]:
        with self._lock:
            if self._own is None:
                self._own = frozenset({_plain(socket.gethostname()), _plain(socket.getfqdn())})
            return self._own


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
