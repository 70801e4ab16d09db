"""Under which names the HTTP server answers: the `Host` header of a request, judged.

A page of a stranger may give its own name the address of this server (DNS rebinding) and then read, in the browser of
whoever opened it, what only their network may reach. Such a request has the stranger's name as its `Host`. No stranger
can have a name without a dot, an IP address, or one that ends as names inside of a cluster or a company do.
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
    """The names of this server, for any thread. `more` are those that somebody configured.

    The resolver is asked once for the machine's fully qualified name, and not before a request has a name that is not
    known otherwise: where name servers are away nothing waits for them but that request.
    """

    def __init__(self, more: Collection[str] = ()) -> None:
        self._names = {_plain(name) for name in more}
        self._lock = threading.Lock()
        self._own: frozenset[str] | None = None

    def has(self, host: str) -> bool:
        """Whether a request with this `Host` header, with or without a port, may be answered."""
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
