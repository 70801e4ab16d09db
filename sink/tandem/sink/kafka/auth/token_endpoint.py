"""Tokens from an OpenID Connect provider, by the client credentials grant (RFC 6749, section 4.4).

librdkafka does this itself for its own connections. kafka-python needs a token to be supplied; this module requests it
with the same settings, in the same form: HTTP Basic, `grant_type` and `scope` in the body.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.request
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import urllib3
import urllib3.exceptions

from tandem.backup_avro.chain.integers import number_in
from tandem.backup_avro.errors import ConfigError, TandemError
from tandem.sink.kafka.auth.http_limits import AnswerLimits
from tandem.sink.kafka.auth.oidc import OidcSettings
from tandem.sink.kafka.auth.tokens import Token
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError, ClusterUnreachableError
from tandem.sink.process import clock

# kafka-python's event loop waits for the token. A token that comes after its connection was given up serves the next.
_READ_S: Final = 5.0
_TIMES: Final = urllib3.Timeout(connect=3.0, read=_READ_S)
_LONGEST_S: Final = 20.0
"""Seconds that all three attempts may take together, whatever the server does."""
_AGAIN: Final = (429, 500, 502, 503, 504)
_RETRIES: Final = urllib3.Retry(
    total=2,
    redirect=0,
    backoff_factor=0.2,
    allowed_methods=None,
    status_forcelist=_AGAIN,
    raise_on_status=False,
    respect_retry_after_header=False,  # it may name hours
)
_LARGEST: Final = 1 << 20
_HEADERS: Final = 1 << 20
"""Bytes that an answer may have in addition to its body."""
_LONGEST_LIFE_S: Final = 366 * 86_400
"""Longest accepted lifetime, in seconds: a token with a longer one would hardly ever be renewed."""
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,60}")
_CHECK: Final = "check sasl.oauthbearer.client.id, .client.secret, .scope and .token.endpoint.url"


def request_token(
    settings: OidcSettings, *, longest_s: float = _LONGEST_S, now: Callable[[], float] = clock.now
) -> Token:
    """Request a token, in up to three attempts. Messages never repeat the answer's text, which may hold a secret.

    Raises ClusterAuthenticationError (refused, or no token in the answer), ClusterUnreachableError (no answer within
    `longest_s` seconds, or a server error), ConfigError (the CA, or a proxy, can't be used).
    """
    limits = AnswerLimits(
        most_s=longest_s,
        read_s=_READ_S,
        most=_LARGEST + _HEADERS,
        error=lambda why: _unreachable(settings.endpoint, why),
        now=now,
    )
    login = base64.b64encode(f"{settings.client_id}:{settings.client_secret}".encode()).decode()
    body = {"grant_type": "client_credentials"} | ({"scope": settings.scope} if settings.scope else {})
    with _pool(settings) as pool:
        try:
            limits.apply_to(pool.connection_from_url(settings.endpoint))
            answer = pool.request(
                "POST",
                settings.endpoint,
                body=urlencode(body).encode(),
                headers={
                    "Authorization": f"Basic {login}",
                    "Accept": "application/json",
                    "Content-Type": "application/x-www-form-urlencoded",
                },
                timeout=_TIMES,
                retries=_RETRIES,
                redirect=False,
                preload_content=False,
            )
            text = answer.read(_LARGEST)
        except urllib3.exceptions.HTTPError as error:
            raise _no_answer(error, settings.endpoint) from None
    return token_of(answer.status, text, settings.endpoint)


def token_of(status: int, text: bytes, endpoint: str) -> Token:
    """Return the token in an answer. Raises ClusterAuthenticationError and ClusterUnreachableError."""
    if status != 200:
        raise _refused(status, text, endpoint)
    return _token_in(text, endpoint)


def _pool(settings: OidcSettings) -> urllib3.PoolManager:
    try:
        context = ssl.create_default_context(
            cafile=settings.ca_location if settings.ca_location not in {"", "probe"} else None,
            cadata=settings.ca_pem or None,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"kafka: https.ca.location or https.ca.pem can't be used ({type(error).__name__})",
            code="TDM-K035",
            remedy="name a readable PEM file, or leave it out for the system's own authorities",
        ) from None
    parts = urlsplit(settings.endpoint)
    # The environment names the proxy, as for libcurl in librdkafka.
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
        try:
            return urllib3.ProxyManager(proxy, ssl_context=context)
        except urllib3.exceptions.HTTPError:
            # The message omits the proxy's URL, which may hold a password.
            raise ConfigError(
                f"the proxy that the environment names for {parts.scheme}:// can't be used",
                code="TDM-K036",
                remedy=f"write {parts.scheme.upper()}_PROXY as http://host:port",
            ) from None
    return urllib3.PoolManager(ssl_context=context)


def _no_answer(error: urllib3.exceptions.HTTPError, endpoint: str) -> TandemError:
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, urllib3.exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(reason):
        return ClusterAuthenticationError(
            f"The certificate of the token endpoint {endpoint} is not trusted",
            code="TDM-K037",
            remedy="set https.ca.location to the file of the certificate authority that signed it",
        )
    return _unreachable(endpoint, type(reason).__name__)


def _unreachable(endpoint: str, why: str) -> ClusterUnreachableError:
    return ClusterUnreachableError(
        f"The token endpoint {endpoint} does not answer: {why}",
        code="TDM-K038",
        remedy="check sasl.oauthbearer.token.endpoint.url, the network and proxies",
    )


def _refused(status: int, text: bytes, endpoint: str) -> TandemError:
    if status in _AGAIN:
        return ClusterUnreachableError(
            f"The token endpoint {endpoint} answers {status}",
            code="TDM-K039",
            remedy="it is asked again; see the provider's log",
        )
    code = _json(text).get("error")
    said = f" {code}" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
    return ClusterAuthenticationError(
        f"The token endpoint {endpoint} gives no token: {status}{said}", code="TDM-K040", remedy=_CHECK
    )


def _token_in(text: bytes, endpoint: str) -> Token:
    said = _json(text)
    value, lifetime_s = said.get("access_token"), _seconds(said.get("expires_in"))
    if not isinstance(value, str) or not value or not value.isascii() or not value.isprintable():
        raise ClusterAuthenticationError(
            f"The answer of the token endpoint {endpoint} holds no token", code="TDM-K041", remedy=_CHECK
        )
    if lifetime_s is None:
        raise ClusterAuthenticationError(
            f"The answer of the token endpoint {endpoint} does not say how long the token lives",
            code="TDM-K042",
            remedy="let the provider send expires_in, in seconds, a year at most (RFC 6749, section 5.1)",
        )
    return Token(value=value, lifetime_s=lifetime_s)


def _seconds(said: object) -> float | None:
    """Return a token's lifetime in seconds, None if the answer has none. Some providers write the number as text."""
    number = number_in(said) if isinstance(said, str) else said
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    # Whole numbers have any size in JSON, so they are compared before they become a double. NaN is in no range.
    return float(number) if 0 < number <= _LONGEST_LIFE_S else None


def _json(text: bytes) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
