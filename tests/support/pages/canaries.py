"""Canaries: secrets that must not be seen, one for each place that takes a secret, and the search for them.

The places follow from the configuration's model: a key that takes a secret has its canaries as soon as it is there, and
one that looks as if it took one has to be classified here (`HARMLESS`) before the tests pass.
"""

from __future__ import annotations

import base64
import gzip
import html
import io
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote, quote_plus

import fastavro
import markupsafe
import zstandard

from tandem.controller.config.kafka import is_secret
from tandem.controller.config.sources import KAFKA, ValueShape, dotted, keys, variable

SENSITIVE: Final = (
    "sasl.password",
    "sasl.jaas.config",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
    "ssl.truststore.password",
    "ssl.keystore.key",
    "basic.auth.user.info",
    "schema.registry.basic.auth.user.info",
    "http.proxy",
)
"""What Kafka's clients take secrets by: what librdkafka calls sensitive, and what people bring along from Java."""

OF_SDKS: Final = (
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN"),
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET", "GOOGLE_SERVICE_ACCOUNT_KEY"),
)
"""Variables with secrets that the SDKs of clouds read by themselves."""

HARMLESS: Final[Mapping[str, str]] = {
    "store.kms_key_id": "names a key of AWS KMS, which never leaves it",
    "store.bucket_key": "a switch",
    "store.credentials_file": "names a file that Google's library reads by itself",
    "encryption.aws_kms_key_arn": "names a key of AWS KMS",
    "encryption.decrypt_aws_kms_key_arns": "name keys of AWS KMS",
}
"""Keys of the configuration that look as if they took a secret, and why they do not."""

_LOOKS_SECRET: Final = re.compile(
    r"secret|token|pass|credential|auth|cookie|(^|[._])keys?($|[._])|sse_c|private", re.IGNORECASE
)
_SHORTEST: Final = 8


def canary(name: str) -> str:
    """Return a secret that says where it was put, with characters that every encoding changes."""
    return f'{secrets.token_hex(6)}+/"{re.sub("[^a-z0-9]+", "-", name.lower())}"\\=%'


def key_canary(_: str) -> str:
    """Return 32 random bytes in base64, as a file of `encryption.key_file` has them."""
    return base64.b64encode(secrets.token_bytes(32)).decode()


def hex_canary(_: str) -> str:
    """Return 32 random bytes in hex that could be the name of a variable."""
    return "a" + secrets.token_hex(32)[1:]


def body_canary(_: str) -> str:
    """Return the one line between those of an Ed25519 private key in PEM, without a sign that variables don't have."""
    while True:
        text = base64.b64encode(bytes.fromhex("302e020100300506032b657004220420") + secrets.token_bytes(32)).decode()
        if text.isalnum():
            return text


def pem_canary(name: str) -> str:
    """Return what can be taken for a private key in PEM, in one line."""
    return f"-----BEGIN PRIVATE KEY----- {canary(name)} -----END PRIVATE KEY-----"


def plain_canary(name: str) -> str:
    """Likewise, for what takes no quotes: passwords of servers in properties files, access keys."""
    return f"{secrets.token_hex(8)}+/{re.sub('[^a-z0-9]+', '-', name.lower())}=%"


# --- the places -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Somewhere a secret may stand. `refused`: it does not belong there, and the configuration says so.

    `settings` are what a file then holds, by section, `environ` variables, `flags` of `--set`, `files` their contents.
    `{}` in them stands for the canary, which `make` makes of the name, `{folder}` for the folder of the files.
    """

    name: str
    refused: bool = False
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    make: Callable[[str], str] = canary

    def secret(self) -> str:
        """Return a new canary for this place."""
        return self.make(self.name)


Make: TypeAlias = Callable[[str], str]
_KEYS: Final = (("a key", key_canary), ("a key in hex", hex_canary), ("the body of a private key", body_canary))


def _key_instead(
    path: tuple[str, ...], shape: ValueShape, kinds: Iterable[tuple[str, Make]] = _KEYS
) -> Iterator[Place]:
    """A key where what names one belongs, or another one's."""
    where = "{}" if shape is ValueShape.SCALAR else "[{}]"
    for kind, make in kinds:
        name = f"{kind} as {dotted(path)}"
        yield Place(name=f"{name} in the environment", refused=True, environ={variable(path): where}, make=make)
        yield Place(name=f"{name} on the command line", refused=True, flags=(f"{dotted(path)}={where}",), make=make)


def _key_as_path(path: tuple[str, ...]) -> Iterator[Place]:
    """The key itself where the path of its file belongs."""
    kinds = (*_KEYS, ("a private key in PEM", pem_canary))
    shape = keys().get(path, ValueShape.SCALAR)
    yield from _key_instead(path, shape, kinds)
    for kind, make in kinds if shape is ValueShape.SCALAR else ():
        name = f"{kind} as {dotted(path)} in the file"
        yield Place(name=name, refused=True, settings={path[0]: {path[-1]: "{}"}}, make=make)


def _of_value(path: tuple[str, ...]) -> Iterator[Place]:
    """The ways to give the value of a secret key."""
    key, (section, name) = dotted(path), path
    by_file = f"{name}.file" if section == KAFKA else f"{name}_file"
    rest: dict[str, str] = {}
    if section == "store":  # credentials are whole, or refused
        rest = {
            one: "AKIA-OF-NO-INTEREST"
            for one in ("access_key_id", "secret_access_key")
            if one != name and keys().get((section, one)) is ValueShape.SECRET
        }
    yield Place(name=f"{key} in the file", settings={section: {**rest, name: "{}"}})
    yield Place(name=f"{key} in the environment", settings={section: rest}, environ={variable(path): "{}"})
    yield Place(
        name=f"{key} in a file of its own",
        settings={section: {**rest, by_file: "{folder}/secret"}},
        files={"secret": "{}\n"},
    )
    yield Place(name=f"{key} on the command line", refused=True, flags=(f"{key}={{}}",))


def _of_reference(path: tuple[str, ...], shape: ValueShape) -> Iterator[Place]:
    """A key of the configuration that says where a secret is: in a file, or in a variable."""
    key, name = dotted(path), path[-1]
    many = shape is not ValueShape.SCALAR
    where = "[{}]" if many else "{}"
    if "_env" in name:
        yield Place(
            name=f"the variable that {key} names",
            environ={variable(path): where.format("KEY_OF_A_TEST"), "KEY_OF_A_TEST": "{}"},
        )
        wrong = {variable(path): '["{}"]'} if many else {variable(path): "{}"}
        yield Place(name=f"{key} itself", refused=True, environ={} if many else wrong, settings={})
        yield from _key_instead(path, shape)
    else:
        yield Place(
            name=f"the file that {key} names",
            environ={variable(path): where.format("{folder}/key")},
            files={"key": "{}\n"},
        )
        yield from _key_as_path(path)


def _refers(path: tuple[str, ...]) -> bool:
    """Whether a key names a file or a variable that holds a key, and is not the file of a key beside it."""
    value = (*path[:-1], path[-1].removesuffix("_file"))
    return re.search(r"(^|_)key_(files?|envs?)$", path[-1]) is not None and keys().get(value) is not ValueShape.SECRET


_PROXIES: Final = {
    "password after a scheme in capitals": "HTTP://me:{}@127.0.0.1:1",
    "password without a user": "http://:{}@127.0.0.1:1",
    "token": "http://{}@127.0.0.1:1",
    "token with a colon": "http://{}:@127.0.0.1:1/",
    "password without a scheme": "me:{}@127.0.0.1:1",
    "password in what is no URL": "http://me:{}@[1",
}


def places() -> list[Place]:
    """Return all places, by what the model has now."""
    found: list[Place] = []
    for path, shape in keys().items():
        name = path[-1]
        if shape is ValueShape.SECRET:
            found += _of_value(path)
        elif _refers(path):
            found += _of_reference(path, shape)
        elif name.endswith("_url") or name in {"root", "listen"}:
            scheme = "s3" if name == "root" else "https"
            text = "me:{}@host:1/x" if name == "listen" else f"{scheme}://me:{{}}@host/x"
            found.append(Place(name=f"credentials in {dotted(path)}", refused=True, environ={variable(path): text}))
    for path in (
        ("store", "kms_key_id"),
        ("encryption", "aws_kms_key_arn"),
        ("encryption", "decrypt_aws_kms_key_arns"),
    ):
        found += _key_instead(path, keys()[path])
    # 32 bytes are what a public key has as well.
    found += [one for one in _key_instead(("signing", "trusted"), ValueShape.NAMES) if one.make is body_canary]
    for name in SENSITIVE:
        found += _of_value((KAFKA, name))
    for name in ("ssl.key.location", "ssl.key.pem.file"):
        found += _key_as_path((KAFKA, name))
    for name in ("bootstrap.servers", "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.assertion.aud.url"):
        text = "me:{}@host:9092" if name == "bootstrap.servers" else "https://me:{}@host/token"
        found.append(Place(name=f"credentials in kafka.{name}", refused=True, settings={KAFKA: {name: text}}))
    for name in OF_SDKS:
        found.append(Place(name=name, environ={name: "{}"}))
    for name in ("HTTP_PROXY", "https_proxy"):
        found.append(Place(name=f"the password in {name}", environ={name: "http://me:{}@127.0.0.1:1"}))
    found += [Place(name=f"a proxy's {what}", environ={"HTTPS_PROXY": text}) for what, text in _PROXIES.items()]
    return [place for place in found if place.settings or place.environ or place.flags]


def unclassified() -> list[str]:
    """Return keys that look as if they took a secret, and of which nobody has said that they do, or do not."""
    known = {dotted(path) for path, shape in keys().items() if shape is ValueShape.SECRET}
    found = []
    for path in keys():
        key = dotted(path)
        refers = _refers(path) or key.removesuffix("_file") in known
        if _LOOKS_SECRET.search(path[-1]) and key not in known and not refers and key not in HARMLESS:
            found.append(key)
    return found + [f"{KAFKA}.{name}" for name in SENSITIVE if not is_secret(name)]


# --- the search -------------------------------------------------------------------------------------------------------


def forms(text: str) -> dict[str, bytes]:
    """Return how a secret may look where it leaks, by what was done to it."""
    raw = text.encode()
    found = {
        "plain": raw,
        "URL-encoded": quote(text, safe="").encode(),
        "as a query": quote_plus(text).encode(),
        "in JSON": re.sub(r'(["\\])', r"\\\1", text).encode(),
        "repr": repr(text)[1:-1].encode(),
        "in HTML": html.escape(text).encode(),
        "in a page": str(markupsafe.escape(text)).encode(),
        "hex": raw.hex().encode(),
        "HEX": raw.hex().upper().encode(),
        "UTF-16": text.encode("utf-16-le"),
    }
    for shift in range(3):  # as it looks in base64 of something longer, wherever it begins in that
        for kind, encode in (("base64", base64.b64encode), ("base64url", base64.urlsafe_b64encode)):
            whole = encode(b"\0" * shift + raw + b"\0" * ((-shift - len(raw)) % 3))
            begin = -(-shift * 4 // 3) if shift else 0
            certain = 4 * ((shift + len(raw)) // 3)
            found[f"{kind} at {shift}"] = whole[begin:certain]
    return {kind: form for kind, form in found.items() if len(form) >= _SHORTEST}


def opened(data: bytes, depth: int = 0) -> Iterator[bytes]:
    """Yield data, and what is in it: packed, or records of an Avro container file."""
    yield data
    if depth > 3:
        return
    inner: list[bytes] = []
    if data[:2] == b"\x1f\x8b":
        inner.append(gzip.decompress(data))
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        inner.append(zstandard.ZstdDecompressor().decompressobj().decompress(data))
    elif data[:1] == b"\x78":
        with suppress(zlib.error):
            inner.append(zlib.decompress(data))
    elif data[:4] == b"Obj\x01":
        inner += [repr(record).encode() for record in fastavro.reader(io.BytesIO(data))]
    for one in inner:
        yield from opened(one, depth + 1)


def appearances(output: str | bytes, planted: Mapping[str, str]) -> list[str]:
    """Return where which canary was seen, and in what form; `planted` are canaries by the name of their place."""
    data = output.encode(errors="surrogateescape") if isinstance(output, str) else output
    found = []
    for layer in opened(data):
        for name, text in planted.items():
            for kind, form in forms(text).items():
                at = layer.find(form)
                if at >= 0:
                    found.append(f"{name}, {kind}: …{layer[max(0, at - 60) : at]!r}…")
                    break
    return found


def in_files(folders: Iterable[Path], planted: Mapping[str, str], *, spared: Iterable[Path] = ()) -> list[str]:
    """Return where in all files below `folders` a canary was seen; `spared` hold them by intention."""
    kept = {path.resolve() for path in spared}
    found = []
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and not kept & {path.resolve(), *path.resolve().parents}:
                found += [f"{path}: {one}" for one in appearances(path.read_bytes(), planted)]
    return found


def filled(thing: Any, secret: str, folder: Path) -> Any:
    """Return texts, mappings and tuples of a `Place` with the canary in them."""
    if isinstance(thing, str):
        return thing.replace("{folder}", str(folder)).replace("{}", secret)
    if isinstance(thing, Mapping):
        return {key: filled(value, secret, folder) for key, value in thing.items()}
    return tuple(filled(value, secret, folder) for value in thing)
