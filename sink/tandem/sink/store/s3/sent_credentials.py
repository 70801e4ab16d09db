"""Records the credentials that a client of AWS's SDK sends, to mask them where an answer repeats them.

Roles of instances, web identities and profiles give credentials that change by the hour and are in no configuration.
So they are taken from the requests themselves: an answer can't repeat credentials that were never sent.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from tandem.sink.process.safe_text import MASK, forms_of

_KEPT: Final = 16
"""Number of newest values kept: an answer may arrive when the next credentials are already in use."""
_SHORTEST: Final = 4
_TOKENS: Final = ("X-Amz-Security-Token", "x-amz-s3session-token")
_KEY_ID: Final = re.compile(r"Credential=([^/,\s]+)")


class SentCredentials:
    """Records the secrets in requests. Thread-safe. `given` are values that are masked in any case."""

    def __init__(self, given: Iterable[str | None] = ()) -> None:
        self._given = tuple(value for value in given if value)
        self._lock = threading.Lock()
        self._sent: OrderedDict[str, None] = OrderedDict()

    def watch(self, client: Any) -> None:  # noqa: ANN401 (clients of all services)
        """Record the secrets of every request of a botocore client."""
        client.meta.events.register("before-send", self._note)

    def mask(self, said: str) -> str:
        """Return `said` with sent secrets masked, in plain form and as escaped in URLs, JSON, HTML and Python."""
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
