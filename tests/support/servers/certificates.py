"""A certificate authority for tests: certificates for brokers and clients, lists of revoked ones. Made in memory."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A certificate and its key, as PEM; the serial number names it in a list of revoked ones."""

    certificate: str
    key: str
    serial: int


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(key: ec.EllipticCurvePrivateKey, password: str | None) -> str:
    lock = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock).decode()


class Authority:
    """Signs for a day."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._now = datetime.now(UTC)
        made = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.pem = made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - timedelta(hours=1))
            .not_valid_after(self._now + timedelta(days=1))
        )

    def issue(self, name: str, *, address: str | None = None, password: str | None = None) -> Issued:
        """Make a key and sign its certificate; `address` is the IP of a server, `password` locks the key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_named(name), key.public_key())
        if address is not None:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
            builder = builder.add_extension(names, critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        pem = made.public_bytes(Encoding.PEM).decode()
        return Issued(certificate=pem, key=_pem(key, password), serial=made.serial_number)

    def revoked(self, *serials: int) -> str:
        """Return the list of revoked certificates, as PEM."""
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(self._now - timedelta(hours=1)).next_update(self._now + timedelta(days=1))
        for serial in serials:
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(self._now)
            builder = builder.add_revoked_certificate(one.build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
