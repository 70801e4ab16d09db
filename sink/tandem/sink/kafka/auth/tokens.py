"""Bearer tokens for SASL OAUTHBEARER (KIP-255, RFC 7628), for both clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tandem.backup_avro.errors import TandemError
from tandem.sink.process import clock

_RENEW_AT: Final = 0.8
"""Fraction of a token's lifetime after which the next one is fetched; the same as librdkafka's."""
_PAUSE_S: Final = 10.0
"""Seconds between two attempts to renew a token that is still valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token, valid for `lifetime_s` seconds from its receipt. The repr hides its value."""

    value: str = field(repr=False)
    lifetime_s: float


class Tokens:
    """Fetches a token when one is needed, and caches it for most of its lifetime. Thread-safe.

    `fetch` raises ClusterAuthenticationError, ClusterUnreachableError or ConfigError. While the cached token is valid,
    a failed renewal raises nothing. `failure` is the error of the last attempt, None if it succeeded. `extensions` are
    sent with each token (KIP-342).
    """

    def __init__(
        self,
        fetch: Callable[[], Token],
        *,
        extensions: Mapping[str, str] | None = None,
        now: Callable[[], float] = clock.now,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._fetch = fetch
        self.extensions = dict(extensions or {})
        self._now = now
        self._wall = wall
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._renew_at = 0.0
        self._ends_at = 0.0
        self.failure: TandemError | None = None

    def current(self) -> tuple[Token, float]:
        """Return a valid token and its remaining seconds. May block while one is fetched. Raises as `fetch` does."""
        with self._lock:
            now = self._now()
            if self._token is None or now >= self._renew_at:
                self._renew(now)
            assert self._token is not None  # else `_renew` has raised
            return self._token, self._ends_at - now

    def _renew(self, now: float) -> None:
        try:
            token = self._fetch()
        except TandemError as error:
            self.failure = error
            if self._token is None or now + _PAUSE_S >= self._ends_at:
                raise
            self._renew_at = now + _PAUSE_S
            return
        self.failure = None
        self._token = token
        self._renew_at = now + token.lifetime_s * _RENEW_AT
        self._ends_at = now + token.lifetime_s

    def __call__(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """Return the result of confluent-kafka's `oauth_cb`: token, expiry (Unix time in s), principal, extensions.

        Raises as `fetch` does; librdkafka then tries again after 10 s, and callers find the reason in `failure`.
        """
        token, left_s = self.current()
        return token.value, self._wall() + left_s, "", self.extensions
