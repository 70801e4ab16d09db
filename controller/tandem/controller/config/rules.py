"""Rules of the configuration beyond types: functions without side effects that yield problems as (key path, text)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.integers import number_in
from tandem.controller.config.values import format_duration, format_size
from tandem.sink.encryption.encryption_settings import VARIABLE
from tandem.sink.store.contract.object_keys import check_key
from tandem.sink.store.contract.object_store import BadKeyError
from tandem.sink.store.contract.store_settings import BUCKET, CONTAINER, OTHER_NAMES
from tandem.sink.store.open_store import folder_of

if TYPE_CHECKING:
    from tandem.controller.config.model import Config

Problem: TypeAlias = tuple[str, str]

PROBLEMS: Final = "problems"
STORE_ALONE: Final = "store_alone"
"""Key in a validation's context: the command reads the store alone, so Kafka and topic settings may be missing."""
RESERVED_PREFIX: Final = "_compacted_log_backup_"
_DRILL: Final = re.compile(r".*\.drill-[0-9a-f]{8}")
"""Names of the scratch topics of `tandem drill`; a pattern that matches the drilled topic may match them too."""
_INTERNAL: Final = layout.INTERNAL_TOPICS | {"_tandem_restore_progress"}
_BROKER: Final = re.compile(r"^.*://|:[0-9]+\s*$|[\s\[\]]")
"""The parts of a broker's address other than the host: scheme, port, brackets, white space."""
_ANY_OF: Final = re.compile(r"\\\w|\[\^?\]?(?:\\.|[^]\\])*\]")
"""In a regular expression: a class of characters, or an escape that stands for one."""
_REPEATED: Final = re.compile(r"(?:\w|-|\\\W)\*")
"""In a regular expression without these: a character that stands for itself, any number of times."""
_LEAST_RATE: Final = 64 * 1024
_LARGEST_OBJECT: Final = 5 * 1024**3
_SMALLEST_BATCH: Final = 1024**2
_LARGEST_BATCH: Final = 1024**3
_SETTINGS_OF: Final = {
    "endpoint_url": {"s3", "gs", "az"},
    "region": {"s3"},
    "ca_bundle": {"s3", "gs", "az"},
    "access_key_id": {"s3"},
    "secret_access_key": {"s3"},
    "session_token": {"s3"},
    "kms_key_id": {"s3"},
    "account_name": {"az"},
    "account_key": {"az"},
    "credentials_file": {"gs"},
}
"""Settings of the store that only some kinds of stores know."""
_LEVELS: Final = {"zstandard": (1, 22), "deflate": (0, 9)}


def refuse(problems: Iterable[Problem]) -> None:
    """Raise one pydantic error that carries all `problems`, if there are any."""
    found = list(problems)
    if found:
        text = "; ".join(f"{path}: {text}" for path, text in found)
        raise PydanticCustomError(PROBLEMS, "{text}", {"text": text, PROBLEMS: found})


def is_reserved(topic: str) -> bool:
    """Return whether `topic` is one of Kafka's internal or Tandem's own topics, which can't be guarded."""
    return topic in _INTERNAL or topic.startswith(RESERVED_PREFIX) or _DRILL.fullmatch(topic) is not None


def checks_store_only(info: ValidationInfo) -> bool:
    """Return whether STORE_ALONE is set in the context of the validation."""
    return isinstance(info.context, dict) and bool(info.context.get(STORE_ALONE))


def topics(
    include: Sequence[str], patterns: Sequence[str], exclude: Sequence[str], *, required: bool = True
) -> Iterator[Problem]:
    """Check that at least one topic is guarded, if `required`, and that no topic is both listed and excluded."""
    if required and not include and not patterns:
        yield "topics", "guards nothing; list topics in topics.include, or regular expressions in topics.patterns"
    for name in include:
        if is_reserved(name):
            yield "topics.include", f"{name} belongs to Kafka or Tandem itself and can't be guarded; take it out"
        for pattern in exclude:
            if re.fullmatch(pattern, name):
                yield "topics.exclude", f'"{pattern}" takes out {name}, which topics.include lists; drop one of the two'
    for name in sorted({name for name in include if include.count(name) > 1}):
        yield "topics.include", f"{name} is listed more than once"


def store_root(root: str) -> str:
    """Return the root without trailing slash.

    Raises ValueError unless it is s3:// or gs://bucket[/prefix], az://container[/prefix] or file:///path.

    `open_store` accepts every root that this function returns.
    """
    scheme, separator, rest = root.partition("://")
    if separator and scheme in OTHER_NAMES:
        raise ValueError(f"can't be used: {OTHER_NAMES[scheme]}")
    bare = root.rstrip("/")
    if bare != bare.strip():
        raise ValueError("begins or ends with a blank; take it out")
    if not separator or scheme not in {"s3", "gs", "az", "file"}:
        raise ValueError("is none of s3://bucket/prefix, gs://…, az://container/prefix and file:///absolute/path")
    if "@" in rest.partition("/")[0]:
        raise ValueError("must not hold credentials; use store.access_key_id_file and store.secret_access_key_file")
    if re.search(r"[?#]", rest):
        raise ValueError(
            f"must not hold '?' or '#'; write {'%3F or %23' if scheme == 'file' else 's3://bucket/prefix'}"
        )
    path = rest.rstrip("/")
    folder = _folder(rest) if scheme == "file" else _prefix(path, scheme)
    if folder and any(segment in {"", ".", ".."} for segment in folder.rstrip("/").removeprefix("/").split("/")):
        raise ValueError("must not hold empty, '.' or '..' path segments")
    if scheme != "file" and folder:
        try:
            check_key(folder)
        except BadKeyError as error:
            raise ValueError(f"has no valid prefix: {error.args[0]}") from None
    if any(char < " " or char == "\x7f" for char in root):
        raise ValueError("holds a control character; take it out")
    return f"{scheme}://{path}"


def _folder(path: str) -> str:
    folder = folder_of(path)
    if folder is None:
        raise ValueError("needs an absolute path: three slashes, as in file:///var/lib/tandem")
    return folder


def _prefix(path: str, scheme: str) -> str:
    bucket, _, prefix = path.partition("/")
    if not bucket:
        raise ValueError(f"does not name a bucket; write {scheme}://bucket/prefix")
    if scheme == "az":
        if not CONTAINER.fullmatch(bucket):
            raise ValueError(f'"{bucket}" is not a container\'s name: 3 to 63 small letters, digits and single "-"')
    elif not BUCKET.fullmatch(bucket):
        raise ValueError(f'"{bucket}" is not a bucket\'s name: 3 to 255 letters, digits, ".", "_" and "-"')
    return prefix


def endpoint_url(url: str) -> str:
    """Return the URL without trailing slash. Raises ValueError unless it is plain http(s)://host[:port]."""
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError("is not a URL; write http://host:port or https://host") from None
    if "@" in url:  # anywhere: a password may contain the characters that end a host name
        raise ValueError("must not hold credentials; use store.access_key_id_file and store.secret_access_key_file")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_fine or parts.query or parts.fragment:
        raise ValueError("is not a URL; write http://host:port or https://host")
    return url.rstrip("/")


def server_side_encryption(name: object) -> object:
    """Return `name`. Raises ValueError for SSE-C, where each request carries the key."""
    if isinstance(name, str) and name.lower().replace("_", "-") in {"sse-c", "ssec", "customer"}:
        raise ValueError("is not supported: every reader would need the key itself; use aws:kms with store.kms_key_id")
    return name


def store(
    *, key: bool, secret: bool, token: bool, encryption: str, kms_key: bool, bucket_key: bool
) -> Iterator[Problem]:
    """Check that credentials are complete, and that KMS settings go with server-side encryption by aws:kms."""
    if key and not secret:
        yield "store.access_key_id", "is set without store.secret_access_key; set both or neither"
    if secret and not key:
        yield "store.secret_access_key", "is set without store.access_key_id; set both or neither"
    if token and not (key and secret):
        yield "store.session_token", "needs store.access_key_id and store.secret_access_key beside it"
    if bucket_key and encryption != "aws:kms":
        yield "store.bucket_key", f"needs store.server_side_encryption: aws:kms, which is {encryption}"
    if kms_key and not encryption.startswith("aws:kms"):
        yield "store.kms_key_id", f"needs store.server_side_encryption: aws:kms, which is {encryption}"


def data_object(target: int, block: int, codec: str, level: int | None) -> Iterator[Problem]:
    """Check object and block size (bytes) against each other, and the compression level against the codec."""
    if target > _LARGEST_OBJECT:
        yield "object.target_size", f"{format_size(target)} is more than S3 takes in one put (5GiB)"
    if block > target:
        yield "object.block_size", f"{format_size(block)} is more than object.target_size {format_size(target)}"
    if level is None:
        return
    if codec not in _LEVELS:
        yield "object.compression_level", f"has no meaning for object.codec: {codec}; leave it out"
    elif not _LEVELS[codec][0] <= level <= _LEVELS[codec][1]:
        low, high = _LEVELS[codec]
        yield "object.compression_level", f"must be from {low} to {high} for object.codec: {codec}, not {level}"


def signing(*, file: bool, env: str | None, trusted: bool, require: bool) -> Iterator[Problem]:
    """Check the sources of the signing key, and that `require` comes with trusted public keys."""
    if env is not None and not VARIABLE.fullmatch(env):
        # The value is not repeated: it may be a key that was written here by mistake.
        yield "signing.key_env", "is not the name of an environment variable; write the name, not the key"
    if file and env:
        yield "signing.key_env", "signing.key_file is set as well; leave one of them out"
    if require and not trusted:
        yield "signing.require", "nobody is trusted; name public keys in signing.trusted or signing.trusted_file"


def host_and_port(listen: str) -> tuple[str, int]:
    """Return host and port of `host:port`, `[v6]:port`, or `:port` (no host: all addresses). Raises ValueError."""
    host, colon, port = listen.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or (host and not bare) or re.search(r"[\s/@]", host) or (":" in bare and bare == host):
        raise ValueError("is not host:port; write :8080 for all addresses, 127.0.0.1:8080 or [::1]:8080")
    if not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or int(port) > 65535:
        raise ValueError("is not host:port with a port from 0 (any free one) to 65535; write :8080")
    return bare, int(port)


def bootstrap_servers(servers: object, *, required: bool = True) -> Iterator[Problem]:
    """Check `bootstrap.servers`, the one Kafka property that is mandatory (unless `required` is false)."""
    path = "kafka.bootstrap.servers"
    if servers is None:
        if required:
            yield path, "required; name at least one broker as host:port"
        return
    for server in str(servers).split(","):
        host, colon, port = server.strip().removeprefix("PLAINTEXT://").rpartition(":")
        if not colon:
            host, port = port, "9092"
        if not host or not number_in(port, most=65535) or re.search(r"\s", host):
            yield path, "is not a list of brokers; write host1:9092,host2:9092"
            return


def whole(config: Config) -> Iterator[Problem]:
    """Check the rules that involve more than one section."""
    first, *others = config.instances or ("",)
    if len(config.instances) != 2 or first in others:
        yield "instances", f"must be two different names, not {len(config.instances)}: [{', '.join(config.instances)}]"
        return
    for name in config.instances:
        if name in layout.FOLDERS:
            yield "instances", f"{name} is the name of a folder in the store; choose another"
        if name.startswith(layout.PROBES):
            yield "instances", f"{name} begins as objects do that try the store, whose rights differ; choose another"
    names = " and ".join(config.instances)
    if config.instance is not None and config.instance not in config.instances:
        yield "instance", f'"{config.instance}" is none of the instances {names}'
    if config.first not in config.instances:
        yield "first", f'"{config.first}" is none of the instances {names}'
    if config.coordination.topic in config.topics.include:
        yield (
            "topics.include",
            f"{config.coordination.topic} is the coordination topic and can't be guarded; take it out",
        )
    yield from _times(config)
    if config.memory.budget < config.object.target_size:
        yield (
            "memory.budget",
            (
                f"{format_size(config.memory.budget)} does not hold one object of object.target_size "
                f"{format_size(config.object.target_size)}; raise the one or lower the other"
            ),
        )
    if not _SMALLEST_BATCH <= config.memory.largest_batch <= _LARGEST_BATCH:
        yield (
            "memory.largest_batch",
            (
                f"{format_size(config.memory.largest_batch)} is not from {format_size(_SMALLEST_BATCH)}, which brokers "
                f"take by default without compression, to {format_size(_LARGEST_BATCH)}"
            ),
        )


def _times(config: Config) -> Iterator[Problem]:
    heartbeat, liveness = config.coordination.heartbeat_interval, config.liveness.timeout
    if liveness < 2 * heartbeat:
        yield (
            "liveness.timeout",
            (
                f"{format_duration(liveness)} is less than two heartbeats (coordination.heartbeat_interval is "
                f"{format_duration(heartbeat)}): one late heartbeat would look like a death; "
                f"use {format_duration(4 * heartbeat)} or more"
            ),
        )
    flush = config.flush.interval
    for path, duration, why in (
        ("rotation.interval", config.rotation.interval, "a turn would end before its first commit"),
        ("handover.timeout", config.handover.timeout, "a successor shows that it covers only when it commits"),
    ):
        if duration <= flush:
            yield (
                path,
                (f"{format_duration(duration)} must be longer than flush.interval {format_duration(flush)}: {why}"),
            )


def doubts(config: Config) -> Iterator[Problem]:
    """Yield a warning for each setting that is allowed but probably a mistake."""
    rotation, waits = config.rotation.interval, config.peer.timeout + config.handover.timeout
    if rotation < waits:
        yield (
            "rotation.interval",
            (
                f"{format_duration(rotation)} is shorter than peer.timeout plus handover.timeout "
                f"({format_duration(waits)}): when an instance is down, turns pile up"
            ),
        )
    if config.liveness.timeout < 3 * config.coordination.heartbeat_interval:
        yield "liveness.timeout", "less than three heartbeats: a short pause may look like a death and start a new turn"
    if config.flush.interval > timedelta(minutes=15):
        yield (
            "flush.interval",
            f"after a crash up to {format_duration(config.flush.interval)} of records are not stored yet",
        )
    if config.memory.budget < 2 * config.object.target_size:
        yield "memory.budget", "less than two objects of object.target_size: fetching stops while one is stored"
    if config.shutdown.grace < timedelta(seconds=5):
        yield "shutdown.grace", "may be too short for the last commit"
    signs = config.signing.key_file is not None or config.signing.key_env is not None
    if signs and not (config.signing.trusted or config.signing.trusted_file):
        yield "signing.trusted", "empty: documents are signed, but nobody checks them with this file"
    yield from _globs(config)
    if config.scan.rate_limit is not None and config.scan.rate_limit < _LEAST_RATE:
        limit = format_size(config.scan.rate_limit)
        yield "scan.rate_limit", f"{limit} per second is too slow for most logs; write a unit, such as 50MiB"
    yield from _cleartext(config)
    escape = re.search("%[0-9A-Fa-f]{2}", config.store.root)
    if escape and config.store.scheme != "file":
        yield "store.root", f"{escape[0]} is part of the prefix as it stands: only in file:// is it another character"
    for name, schemes in _SETTINGS_OF.items():
        if getattr(config.store, name) is not None and config.store.scheme not in schemes:
            yield f"store.{name}", f"has no effect on a {config.store.scheme}:// store"


def _globs(config: Config) -> Iterator[Problem]:
    """Yield the expressions that repeat one character, which are likely meant as patterns of a shell."""
    for path, patterns in (
        ("topics.patterns", config.topics.patterns),
        ("topics.exclude", config.topics.exclude),
        ("groups.include", config.groups.include),
        ("groups.exclude", config.groups.exclude),
    ):
        for pattern in patterns:
            if _REPEATED.search(_ANY_OF.sub(".", pattern)):
                yield path, f'"{pattern}": in a regular expression * repeats the character before it; write .* instead'


def _cleartext(config: Config) -> Iterator[Problem]:
    """Yield the settings that let the network read the traffic or impersonate a server."""
    kafka = config.kafka
    protocol = str(kafka.get("security.protocol") or "plaintext").upper()
    servers = str(kafka.get("bootstrap.servers") or "").split(",")
    near = all(_is_loopback(_BROKER.sub("", server)) for server in servers)
    if protocol == "SASL_PLAINTEXT" and not near:
        yield "kafka.security.protocol", "SASL_PLAINTEXT sends login and records in the clear; use SASL_SSL"
    if protocol.endswith("SSL"):
        if kafka.get("enable.ssl.certificate.verification") is False:
            text = "false lets any server pose as a broker; name the CA in ssl.ca.location instead"
            yield "kafka.enable.ssl.certificate.verification", text
        if str(kafka.get("ssl.endpoint.identification.algorithm") or "https").lower() == "none":
            text = "none accepts any host's certificate for a broker's; leave it out"
            yield "kafka.ssl.endpoint.identification.algorithm", text
    token_endpoint = kafka.get("sasl.oauthbearer.token.endpoint.url")
    for path, url, what in (
        ("store.endpoint_url", config.store.endpoint_url, "records, unless they are encrypted, and session tokens"),
        ("encryption.aws_kms_endpoint_url", config.encryption.aws_kms_endpoint_url, "data keys"),
        ("kafka.sasl.oauthbearer.token.endpoint.url", token_endpoint, "the client's secret and tokens"),
    ):
        parts = urlsplit(str(url or ""))
        if parts.scheme.lower() == "http" and not _is_loopback(parts.hostname):
            yield path, f"http:// sends {what} in the clear; use https://"


def _is_loopback(host: str | None) -> bool:
    """Return whether traffic to `host` stays on this machine: a loopback address, or the name `localhost`."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False
