"""What a client of AWS's SDK has sent of its credentials, to hide it where an answer repeats it.

Roles of instances, web identities and profiles give credentials that change by the hour, and that no configuration
holds. So they are taken from the requests themselves: what was never sent no answer can repeat.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from tandem.sink.kafka.auth.secret_forms import forms_of

MASK: Final = "********"
_KEPT: Final = 16
"""Newest values. An answer may come when the next credentials are in use already."""
_SHORTEST: Final = 4
_TOKENS: Final = ("X-Amz-Security-Token", "x-amz-s3session-token")
_KEY_ID: Final = re.compile(r"Credential=([^/,\s]+)")


class SentCredentials:
    """Remembers what is secret in requests. Thread-safe. `given` are values that are hidden in any case."""

    def __init__(self, given: Iterable[str | None] = ()) -> None:
        self._given = tuple(value for value in given if value)
        self._lock = threading.Lock()
        self._sent: OrderedDict[str, None] = OrderedDict()

    def watch(self, client: Any) -> None:  # noqa: ANN401 (clients of all services)
        """See every request of a client of botocore."""
        client.meta.events.register("before-send", self._note)

    def mask(self, said: str) -> str:
        """Return `said` without what was sent, as it is, and as URLs, JSON, HTML and Python have it."""
        with self._lock:
            known = (*self._given, *self._sent)
        forms = {form for value in known for form in forms_of(value) if len(form) >= _SHORTEST}
        for form in sorted(forms, key=len, reverse=True):
            said = said.replace(form, MASK)
        return said

    def _note(self, request: Any, **_: object) -> None:  # noqa: ANN401 (as botocore calls it)
        found = [_text(request.headers.get(name)) for name in _TOKENS]
        found += _KEY_ID.findall(_text(request.headers.get("Authorization")))
        with self._lock:
            for value in filter(None, found):
                self._sent[value] = None
                self._sent.move_to_end(value)
            while len(self._sent) > _KEPT:
                self._sent.popitem(last=False)


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
