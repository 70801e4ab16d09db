"""TLS contexts for kafka-python's connections, from the options that `client_config.for_kafka_python` returns.

kafka-python builds its own contexts, but supports no PEM text, no CA folder and no switching off of verification, and
fails with any CRL. So contexts are built here, anew for each connection: the next connection then uses a certificate
that was renewed on disk.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tandem.backup_avro.errors import ConfigError

KEYS: Final = frozenset(
    {
        "ssl_cafile",
        "ssl_ca_pem",
        "ssl_certfile",
        "ssl_cert_pem",
        "ssl_keyfile",
        "ssl_key_pem",
        "ssl_password",
        "ssl_crlfile",
        "ssl_check_hostname",
        "ssl_verify_certificate",
    }
)
"""The options that `ssl_context` reads."""

_FORMS: Final = "docs/connections.md shows the forms; PEM text begins with -----BEGIN"


def take_tls_options(config: dict[str, Any]) -> dict[str, Any]:
    """Remove the options that `ssl_context` reads from `config`, and return them."""
    return {name: config.pop(name) for name in KEYS & config.keys()}


def ssl_context(config: Mapping[str, Any]) -> ssl.SSLContext:
    """Return a client's context: TLS 1.2 or newer; brokers are verified unless the user switched that off.

    Raises ConfigError that names the property whose file or text can't be used. The message contains no part of a key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.get("ssl_verify_certificate", True):
        context.check_hostname = bool(config.get("ssl_check_hostname", True))
        _trust(context, config)
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.get("ssl_certfile") or config.get("ssl_cert_pem"):
        _show(context, config)
    return context


def _trust(context: ssl.SSLContext, config: Mapping[str, Any]) -> None:
    pem, place = config.get("ssl_ca_pem"), config.get("ssl_cafile")
    if pem:
        with _named("ssl.ca.pem", None):
            context.load_verify_locations(cadata=pem)
    elif place and Path(place).is_dir():
        context.load_verify_locations(capath=place)
    elif place:
        with _named("ssl.ca.location", place):
            context.load_verify_locations(cafile=place)
    else:
        context.load_default_certs()
    crl = config.get("ssl_crlfile")
    if crl:
        with _named("ssl.crl.location", crl):
            context.load_verify_locations(cafile=crl)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _show(context: ssl.SSLContext, config: Mapping[str, Any]) -> None:
    """Load the client certificate with its chain, and its key."""
    in_text = bool(config.get("ssl_cert_pem"))
    certificate = ("ssl.certificate.pem", None) if in_text else ("ssl.certificate.location", config["ssl_certfile"])
    if config.get("ssl_key_pem"):
        key = ("ssl.key.pem", None)
    elif config.get("ssl_keyfile"):
        key = ("ssl.key.location", config["ssl_keyfile"])
    else:
        key = certificate  # one file with both
    for name, place in (certificate, key):
        if place is not None:
            with _named(name, place), Path(place).open("rb"):
                pass  # the SSL library does not say which of the two files it lacks
    with ExitStack() as stack:
        certificate_file, key_file = (
            stack.enter_context(_file_of(name, config.get(text), place))
            for (name, place), text in ((certificate, "ssl_cert_pem"), (key, "ssl_key_pem"))
        )
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(certificate_file, key_file, password=config.get("ssl_password") or "")
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None)
            if reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(
                    f"kafka: {key[0]} is not the key of {certificate[0]}",
                    code="TDM-K030",
                    remedy="set the two that belong together",
                ) from None
            raise ConfigError(
                f"kafka: {certificate[0]} and {key[0]} can't be used ({reason or 'no PEM text'})",
                code="TDM-K031",
                remedy=f"check ssl.key.password, and that both are PEM; {_FORMS}",
            ) from None


@contextmanager
def _file_of(name: str, pem: str | None, place: str | None) -> Iterator[str]:
    """Yield a path to `pem` in an unnamed file in memory: Python's SSL module only loads keys from files."""
    if place is not None or pem is None:
        yield place or ""
        return
    if sys.platform != "linux":
        raise ConfigError(
            f"kafka: {name} works on Linux only", code="TDM-K032", remedy="write it to a file and set its .location"
        )
    descriptor = os.memfd_create("tandem-pem")
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(pem.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextmanager
def _named(name: str, place: str | None) -> Iterator[None]:
    """Turn errors of loading one property's file or text into a ConfigError that names the property."""
    where = f"kafka: {name}" if place is None else f"kafka: {name}: {place}"
    try:
        yield
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{where}: no certificate in PEM form", code="TDM-K033", remedy=_FORMS) from None
    except OSError as error:
        raise ConfigError(
            f"{where}: {error.strerror}", code="TDM-K034", remedy="mount it, or correct the path"
        ) from None
