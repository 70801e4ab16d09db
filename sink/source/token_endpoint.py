"""Tokens from an OpenID Connect provider, by the client credentials grant (RFC 6749, section 4.4).

librdkafka does this itself for its own connections. kafka-python wants a token given; here it is asked for with the
same settings, in the same form: HTTP Basic, `grant_type` and `scope` in the body.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.request
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import urllib3
import urllib3.exceptions

from backup_avro.errors import ConfigError, TandemError
from sink.source.errors import ClusterAuthenticationError, ClusterUnreachableError
from sink.source.oidc import OidcSettings
from sink.source.tokens import Token

# An event loop waits meanwhile. What comes after its connection was given up serves the next one.
_TIMES: Final = urllib3.Timeout(connect=3.0, read=5.0)
_AGAIN: Final = (429, 500, 502, 503, 504)
_RETRIES: Final = urllib3.Retry(
    total=2, redirect=0, backoff_factor=0.2, allowed_methods=None, status_forcelist=_AGAIN, raise_on_status=False
)
_LARGEST: Final = 1 << 20
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,60}")
_CHECK: Final = "check sasl.oauthbearer.client.id, .client.secret, .scope and .token.endpoint.url"


def fetch(settings: OidcSettings) -> Token:
    """Ask for a token, three times if nobody answers. The answer's text is never repeated, it may hold a secret.

    Raises ClusterAuthenticationError (refused, or no token in the answer), ClusterUnreachableError (nobody answers, or
    the server has trouble), ConfigError (the CA can't be read).
    """
    login = base64.b64encode(f"{settings.client_id}:{settings.client_secret}".encode()).decode()
    body = {"grant_type": "client_credentials"} | ({"scope": settings.scope} if settings.scope else {})
    with _pool(settings) as pool:
        try:
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
    if answer.status != 200:
        raise _refused(answer.status, text, settings.endpoint)
    return _token_in(text, settings.endpoint)


def _pool(settings: OidcSettings) -> urllib3.PoolManager:
    try:
        context = ssl.create_default_context(
            cafile=settings.ca_location if settings.ca_location not in {"", "probe"} else None,
            cadata=settings.ca_pem or None,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"kafka: https.ca.location or https.ca.pem can't be used ({type(error).__name__})",
            remedy="name a readable PEM file, or leave it out for the system's own authorities",
        ) from None
    parts = urlsplit(settings.endpoint)
    # As libcurl does in librdkafka: what the environment says.
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
        return urllib3.ProxyManager(proxy, ssl_context=context)
    return urllib3.PoolManager(ssl_context=context)


def _no_answer(error: urllib3.exceptions.HTTPError, endpoint: str) -> TandemError:
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, urllib3.exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(reason):
        return ClusterAuthenticationError(
            f"The certificate of the token endpoint {endpoint} is not trusted",
            remedy="set https.ca.location to the file of the certificate authority that signed it",
        )
    return ClusterUnreachableError(
        f"The token endpoint {endpoint} does not answer: {type(reason).__name__}",
        remedy="check sasl.oauthbearer.token.endpoint.url, the network and proxies",
    )


def _refused(status: int, text: bytes, endpoint: str) -> TandemError:
    if status in _AGAIN:
        return ClusterUnreachableError(
            f"The token endpoint {endpoint} answers {status}", remedy="it is asked again; see the provider's log"
        )
    code = _json(text).get("error")
    said = f" {code}" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
    return ClusterAuthenticationError(f"The token endpoint {endpoint} gives no token: {status}{said}", remedy=_CHECK)


def _token_in(text: bytes, endpoint: str) -> Token:
    said = _json(text)
    value, lifetime = said.get("access_token"), said.get("expires_in")
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise ClusterAuthenticationError(f"The answer of the token endpoint {endpoint} holds no token", remedy=_CHECK)
    if isinstance(lifetime, str) and lifetime.isdecimal():
        lifetime = int(lifetime)
    if not isinstance(lifetime, int | float) or lifetime <= 0:
        raise ClusterAuthenticationError(
            f"The answer of the token endpoint {endpoint} does not say how long the token lives",
            remedy="let the provider send expires_in (RFC 6749, section 5.1)",
        )
    return Token(value=value, lifetime_s=float(lifetime))


def _json(text: bytes) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
