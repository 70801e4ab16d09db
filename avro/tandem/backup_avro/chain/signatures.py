"""Signatures of stored documents: Ed25519 over an object's key and the SHA-256 of its bytes.

The key names pair, generation and number, so a signature for one key is invalid at another one. A signature is stored
inside the document's bytes but does not cover itself: as first field `_sig` of a JSON document, or as an extra field in
the header of a gzip member. The reader removes it first; links, comparisons and heads are of the bytes without it, and
a document is the same one whether it is signed or not.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from tandem.backup_avro.errors import ConfigError, DamagedError

_DOMAIN: Final = b"tandem signed object 1\0"
_FIELD: Final = b'{"_sig":"'
_END: Final = b'",'
_TOKEN: Final = re.compile(rb"1\.([0-9a-f]{16})\.([A-Za-z0-9_-]{86})")
_LONGEST: Final = 1000
"""Most bytes of a signature, including those of later releases."""
_GZIP: Final = b"\x1f\x8b"
_GZIP_HEADER: Final = 10
_FEXTRA: Final = 4
_SUBFIELD: Final = b"TS"
_SUBFIELD_HEADER: Final = 4
_PUBLIC_BYTES: Final = 32

_FORGED: Final = (
    "it was changed, or moved here from elsewhere: bring the object back from the bucket's versions or a replica, and "
    "find the process that writes to the bucket"
)


class SignatureError(DamagedError):
    """A document has no valid signature by a trusted key: it is ignored."""


def public_text(key: Ed25519PublicKey) -> str:
    """Return a public key in the form that configurations use: base64 of its 32 bytes."""
    return base64.b64encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def key_id(public: str) -> str:
    """Return the short name of a public key: 16 hex digits of the SHA-256 of its bytes."""
    return hashlib.sha256(base64.b64decode(public)).hexdigest()[:16]


def parse_public(text: str) -> Ed25519PublicKey:
    """Return the key of a text that `public_text` made. ConfigError otherwise."""
    try:
        data = base64.b64decode(text.strip(), validate=True)
        if len(data) == _PUBLIC_BYTES:
            return Ed25519PublicKey.from_public_bytes(data)
    except (binascii.Error, ValueError):
        pass
    raise ConfigError(
        f"{text.strip()[:60]!r} is no public key: base64 of 32 bytes was expected",
        code="TDM-A033",
        remedy="`tandem signing-key show` prints the one that belongs to a private key",
    )


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key that signs documents. Its repr shows nothing of the key."""

    _key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls) -> Self:
        """Return a new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def of_pem(cls, data: bytes, place: str) -> Self:
        """Return the key of a PKCS #8 PEM file without passphrase. ConfigError names `place`, never the content."""
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(
                f"{place}: no Ed25519 private key in PEM (PKCS #8, without passphrase)",
                code="TDM-A034",
                remedy="`tandem signing-key generate FILE` makes one",
            )
        return cls(key)

    def pem(self) -> bytes:
        """Return the private key as PKCS #8 PEM. It is a secret."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def public(self) -> str:
        """The public key, as `public_text` writes it."""
        return public_text(self._key.public_key())

    @property
    def id(self) -> str:
        """The short name of the key."""
        return key_id(self.public)

    def seal(self, key: str, body: bytes) -> bytes:
        """Return the bytes to store for a document under `key`: the same bytes each time for the same document."""
        signature = base64.urlsafe_b64encode(self._key.sign(_message(key, body))).rstrip(b"=")
        token = b"1." + self.id.encode() + b"." + signature
        if body[:2] == _GZIP:
            extra = _SUBFIELD + struct.pack("<H", len(token)) + token
            head = body[:3] + bytes([body[3] | _FEXTRA]) + body[4:_GZIP_HEADER]
            return head + struct.pack("<H", len(extra)) + extra + body[_GZIP_HEADER:]
        return b"".join((_FIELD, token, _END, body[1:]))


def _message(key: str, body: bytes) -> bytes:
    return b"".join((_DOMAIN, key.encode(), b"\0", hashlib.sha256(body).digest()))


def unseal(data: bytes) -> tuple[bytes, bytes | None]:
    """Return a document's bytes and its signature, None if it has none. Other bytes are returned unchanged."""
    if data.startswith(_FIELD):
        end = data.find(_END, len(_FIELD), len(_FIELD) + _LONGEST)
        if end >= 0:
            return b"{" + data[end + len(_END) :], data[len(_FIELD) : end]
    elif data[:2] == _GZIP and data[3:4] == bytes([_FEXTRA]):
        (size,) = struct.unpack("<H", data[_GZIP_HEADER : _GZIP_HEADER + 2].ljust(2, b"\0"))
        extra = data[_GZIP_HEADER + 2 : _GZIP_HEADER + 2 + size]
        token = extra[_SUBFIELD_HEADER:]
        if len(extra) == size and extra[:_SUBFIELD_HEADER] == _SUBFIELD + struct.pack("<H", len(token)):
            head = data[:3] + b"\0" + data[4:_GZIP_HEADER]
            return head + data[_GZIP_HEADER + 2 + size :], token
    return data, None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The public keys whose signatures are trusted, by their short names. `require`: unsigned documents are refused.

    Without `require` a signature by a trusted key must be valid, and a document without one, or with one by an unknown
    key, is accepted: for the time until all writers sign.
    """

    keys: Mapping[str, Ed25519PublicKey] = field(default_factory=lambda: MappingProxyType({}))
    require: bool = False

    @classmethod
    def of(cls, publics: Iterable[str], *, require: bool) -> Self:
        """Return the trust in public keys as configurations write them. ConfigError names the first invalid one."""
        keys = [parse_public(text) for text in publics]
        named = {key_id(public_text(key)): key for key in keys}
        return cls(keys=MappingProxyType(named), require=require)

    def open(self, key: str, data: bytes) -> bytes:
        """Return the document stored under `key`, without its signature. SignatureError if it is not trusted."""
        body, token = unseal(data)
        if token is None:
            if self.require:
                raise SignatureError(
                    f"{key} is not signed, and signing.require is set",
                    code="TDM-A035",
                    remedy="it was forged, or written before signing was switched on; if so, set signing.require: "
                    "false until the pair has taken a turn and what is older is cleared",
                )
            return body
        match = _TOKEN.fullmatch(token)
        public = None if match is None else self.keys.get(match[1].decode())
        if match is None or public is None:
            if self.require:
                by = "in an unknown form" if match is None else f"with the key {match[1].decode()}"
                raise SignatureError(
                    f"{key} is signed {by}, which signing.trusted does not hold",
                    code="TDM-A036",
                    remedy="if it is the key of a writer of yours, add its public key; else the object was forged",
                )
            return body
        if not _is_right(public, match[2], _message(key, body)):
            raise SignatureError(f"{key}: the signature is wrong", code="TDM-A037", remedy=_FORGED)
        return body


def _is_right(public: Ed25519PublicKey, text: bytes, message: bytes) -> bool:
    signature = base64.urlsafe_b64decode(text + b"==")
    try:
        public.verify(signature, message)
    except InvalidSignature:
        return False
    return base64.urlsafe_b64encode(signature).rstrip(b"=") == text  # one signature, one spelling
