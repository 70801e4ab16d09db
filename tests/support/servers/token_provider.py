"""An OpenID Connect provider for tests: a token endpoint and the keys that its tokens are checked by, over HTTP."""

from __future__ import annotations

import base64
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from support.servers.serving import ANY_PORT, Quiet, serving

AUDIENCE = "kafka"
ISSUER = "https://issuer.test"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class TokenProvider:
    """Serves until the `with` ends. `asked` are the form bodies of all requests for tokens, in order.

    `answers` are taken first, one per request: (status, body). `lifetime_s` is what tokens then live.
    """

    def __init__(self, *, client_id: str, client_secret: str, lifetime_s: int = 300) -> None:
        self.client_id, self.client_secret, self.lifetime_s = client_id, client_secret, lifetime_s
        self.asked: list[str] = []
        self.answers: list[tuple[int, bytes]] = []
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        provider = self

        class Handler(Quiet, BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, json.dumps(provider._keys()).encode())

            def do_POST(self) -> None:
                provider.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._send(*provider._answer(self.headers.get("Authorization", "")))

            def _send(self, status: int, body: bytes) -> None:
                self.answer(status, body, headers={"Content-Type": "application/json"})

        self._serving = serving(ThreadingHTTPServer(ANY_PORT, Handler))
        self._address = ""

    @property
    def url(self) -> str:
        """Where tokens are asked for."""
        return f"{self._address}/token"

    @property
    def keys_url(self) -> str:
        """Where a broker gets the keys (JWKS)."""
        return f"{self._address}/keys"

    def __enter__(self) -> Self:
        self._address = self._serving.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._serving.__exit__(kind, error, trace)

    def _keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        return {
            "keys": [
                {
                    "kty": "RSA",
                    "kid": "one",
                    "use": "sig",
                    "alg": "RS256",
                    "n": _text(numbers.n.to_bytes(256, "big")),
                    "e": _text(numbers.e.to_bytes(3, "big")),
                }
            ]
        }

    def _answer(self, authorization: str) -> tuple[int, bytes]:
        if self.answers:
            return self.answers.pop(0)
        expected = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        if authorization != f"Basic {expected}":
            return 401, b'{"error": "invalid_client", "error_description": "you sent not-the-secret"}'
        said = {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.lifetime_s}
        return 200, json.dumps(said).encode()

    def token(self) -> str:
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": self.client_id, "iat": now, "exp": now + self.lifetime_s}
        parts = [json.dumps(part).encode() for part in ({"alg": "RS256", "kid": "one"}, claims)]
        signed = ".".join(map(_text, parts))
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"
