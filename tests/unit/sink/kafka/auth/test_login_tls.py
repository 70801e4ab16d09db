"""TLS contexts, against a real server: what is trusted, what is shown, what is said of a file that can't be used."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.servers.certificates import Authority, Issued

from tandem.backup_avro.errors import ConfigError
from tandem.sink.kafka.auth import tls
from tandem.sink.kafka.auth.client_config import for_kafka_python
from tandem.sink.kafka.wire.connections import open_connections

HOST = "127.0.0.1"
LOCK = "swordfish-in-the-sea"


class Server:
    """Takes TLS connections one by one, and keeps whom they showed."""

    def __init__(self, folder: Path, own: Issued, trusts: str | None) -> None:
        pem = folder / "server.pem"
        pem.write_text(own.key + own.certificate)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pem)
        if trusts is not None:
            self._context.load_verify_locations(cadata=trusts)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
                with self._context.wrap_socket(connection, server_side=True) as wrapped:
                    wrapped.sendall(b"hello")
            except ssl.SSLError:
                continue
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()


def greet(server: Server, config: dict[str, Any]) -> bytes:
    """Connect as kafka-python's connections do, and read what the server says once it is content."""
    with socket.create_connection((HOST, server.port), timeout=10) as sock:
        wrapped = tls.ssl_context(config).wrap_socket(sock, server_hostname=HOST)
        return wrapped.recv(5)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("Tests")


@pytest.fixture
def serve(authority: Authority, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """A function that starts a server."""
    servers: list[Server] = []

    def start(own: Issued | None = None, *, mutual: bool = False) -> Server:
        own = own or authority.issue("server", address=HOST)
        servers.append(Server(tmp_path, own, authority.pem if mutual else None))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_authorities(serve: Callable[..., Server], authority: Authority, tmp_path: Path) -> None:
    """As a file, a folder and a text; others are not trusted; unless it is not to be verified at all."""
    server = serve()
    (tmp_path / "ca.pem").write_text(authority.pem)
    assert greet(server, {"ssl_cafile": str(tmp_path / "ca.pem")}) == b"hello"
    assert greet(server, {"ssl_ca_pem": authority.pem}) == b"hello"
    for config in ({}, {"ssl_ca_pem": Authority("Stranger").pem}, {"ssl_cafile": str(tmp_path)}):
        with pytest.raises(ssl.SSLCertVerificationError):
            greet(server, config)
    assert greet(server, {"ssl_verify_certificate": False}) == b"hello"


def test_names_are_checked(serve: Callable[..., Server], authority: Authority) -> None:
    """A certificate for another host is refused, unless `ssl.endpoint.identification.algorithm` is none."""
    server = serve(authority.issue("server", address="127.0.0.9"))
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(server, {"ssl_ca_pem": authority.pem})
    assert greet(server, {"ssl_ca_pem": authority.pem, "ssl_check_hostname": False}) == b"hello"


def test_revoked_certificates(serve: Callable[..., Server], authority: Authority, tmp_path: Path) -> None:
    """With a list of revoked ones, those are refused and others are not."""
    own = authority.issue("server", address=HOST)
    server = serve(own)
    crl = tmp_path / "crl.pem"
    config = {"ssl_ca_pem": authority.pem, "ssl_crlfile": str(crl)}
    crl.write_text(authority.revoked(own.serial + 1))
    assert greet(server, config) == b"hello"
    crl.write_text(authority.revoked(own.serial))
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        greet(server, config)


def test_own_certificates(serve: Callable[..., Server], authority: Authority, tmp_path: Path) -> None:
    """From two files, from one, and from text with a locked key."""
    server = serve(mutual=True)
    base = {"ssl_ca_pem": authority.pem}
    mine, locked = authority.issue("me"), authority.issue("me", password=LOCK)
    certificate, key, both = tmp_path / "me.crt", tmp_path / "me.key", tmp_path / "me.pem"
    certificate.write_text(mine.certificate)
    key.write_text(mine.key)
    both.write_text(mine.certificate + mine.key)
    assert greet(server, base | {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}) == b"hello"
    assert greet(server, base | {"ssl_certfile": str(both)}) == b"hello"
    text = {"ssl_cert_pem": locked.certificate, "ssl_key_pem": locked.key}
    assert greet(server, base | text | {"ssl_password": LOCK}) == b"hello"
    with pytest.raises(ssl.SSLError, match="certificate"):
        greet(server, base)
    certificate.write_text(authority.issue("renewed").certificate)
    with pytest.raises(ConfigError, match=r"ssl\.key\.location is not the key of ssl\.certificate\.location"):
        tls.ssl_context(base | {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)})


def test_what_cannot_be_used_is_named(authority: Authority, tmp_path: Path) -> None:
    """The property, and the path where there is one; nothing of a key, and no question on the terminal."""
    locked = authority.issue("me", password=LOCK)
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("hush")
    certificate = tmp_path / "me.crt"
    certificate.write_text(locked.certificate)
    text = {"ssl_cert_pem": locked.certificate, "ssl_key_pem": locked.key}
    for config, words in (
        ({"ssl_cafile": "/nowhere"}, ("ssl.ca.location", "/nowhere", "No such file")),
        ({"ssl_cafile": str(nonsense)}, ("ssl.ca.location", str(nonsense), "no certificate in PEM form")),
        ({"ssl_ca_pem": "hush"}, ("ssl.ca.pem", "no certificate")),
        ({"ssl_crlfile": "/nowhere"}, ("ssl.crl.location", "/nowhere")),
        ({"ssl_certfile": "/nowhere", "ssl_keyfile": "/x"}, ("ssl.certificate.location", "/nowhere")),
        ({"ssl_certfile": str(certificate), "ssl_keyfile": "/nowhere"}, ("ssl.key.location", "/nowhere")),
        ({"ssl_certfile": str(certificate), "ssl_keyfile": str(nonsense)}, ("ssl.key.location", "can't be used")),
        (text, ("ssl.key.pem", "ssl.key.password")),
        (text | {"ssl_password": "wrong"}, ("ssl.key.pem", "ssl.key.password")),
        ({"ssl_cert_pem": locked.certificate, "ssl_key_pem": "hush"}, ("ssl.certificate.pem", "PEM")),
    ):
        with pytest.raises(ConfigError) as raised:
            tls.ssl_context(config)
        said = str(raised.value)
        assert [word for word in words if word not in said] == [], said
        assert "hush" not in said
        assert "\n" not in said


def test_text_reaches_the_connections(authority: Authority) -> None:
    """From librdkafka's names to the context; a wrong one ends the start, not the first connection."""
    mine = authority.issue("me")
    props = {
        "bootstrap.servers": "one:9093",
        "security.protocol": "SSL",
        "ssl.ca.pem": authority.pem,
        "ssl.certificate.pem": mine.certificate,
        "ssl.key.pem": mine.key,
    }
    net, manager = open_connections(for_kafka_python(props), servers="here")
    manager.close()
    net.close()
    with pytest.raises(ConfigError, match=r"ssl\.ca\.pem"):
        open_connections(for_kafka_python(props | {"ssl.ca.pem": "x"}), servers="here")


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"ssl.ca.pem": "x", "ssl.ca.location": "/x"}, r"ssl\.ca\.location and ssl\.ca\.pem are both set"),
        ({"ssl.key.pem": "x"}, r"ssl\.key\.pem is set without"),
        ({"ssl.certificate.pem": "x"}, r"set without ssl\.key\.pem"),
        ({"security.protocol": "PLAINTEXT", "ssl.ca.pem": "x"}, "nothing would be encrypted"),
        ({"ssl.keystore.location": "/x.p12"}, "openssl pkcs12"),
        ({"ssl.truststore.location": "/x.jks"}, r"ssl\.ca\.location"),
    ],
)
def test_contradictions(more: dict[str, Any], word: str) -> None:
    """Two sources of one thing, halves of a pair, key stores."""
    with pytest.raises(ConfigError, match=word):
        for_kafka_python({"bootstrap.servers": "one:9093", "security.protocol": "SSL"} | more)
