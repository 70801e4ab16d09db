"""Client configuration by librdkafka's property names, for both Kafka clients.

The user writes librdkafka's names (its CONFIGURATION.md) once. confluent-kafka takes them as they are; for the fetcher,
which runs on kafka-python, they are mapped here. A property that affects security or reachability and that the fetcher
can't honour is refused by name, so that no user relies on a protection that isn't there. Properties that only tune
librdkafka are ignored; their names are listed. Values of secrets never appear in messages.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tandem.backup_avro.errors import ConfigError
from tandem.sink.kafka.auth import msk, oidc
from tandem.sink.kafka.auth.tokens import Tokens

Value: TypeAlias = str | int | float | bool

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_MIB = 1 << 20


def _text(_: str, value: Value) -> str:
    return str(value)


def _integer(name: str, value: Value) -> int:
    try:
        return int(str(value))  # as text, so that neither 1.5 nor true pass
    except ValueError:
        raise ConfigError(f"kafka: {name} must be an integer, got {value!r}", code="TDM-K001") from None


def _flag(name: str, value: Value) -> bool:
    text = str(value).lower()
    if text in ("true", "t", "1", "yes"):
        return True
    if text in ("false", "f", "0", "no"):
        return False
    raise ConfigError(f"kafka: {name} must be true or false, got {value!r}", code="TDM-K002")


def _servers(name: str, value: Value) -> list[str]:
    servers = [server.strip() for server in str(value).split(",") if server.strip()]
    if not servers:
        raise ConfigError(
            f"kafka: {name} names no server", code="TDM-K003", remedy="give host:port, several with commas between"
        )
    return servers


def _one_of(*allowed: str, upper: bool = False) -> Callable[[str, Value], str]:
    def check(name: str, value: Value) -> str:
        text = str(value).upper() if upper else str(value).lower()
        if text not in allowed:
            raise ConfigError(f"kafka: {name} is {value!r}; the fetcher knows {', '.join(allowed)}", code="TDM-K004")
        return text

    return check


def _check_hostname(name: str, value: Value) -> bool:
    return _one_of("https", "none")(name, value) == "https"


def _idle(name: str, value: Value) -> int:
    return _integer(name, value) or 10**9  # 0 switches it off in librdkafka


# librdkafka name -> (kafka-python name, how the value is read)
_MAPPED: Mapping[str, tuple[str, Callable[[str, Value], object]]] = {
    "bootstrap.servers": ("bootstrap_servers", _servers),
    "metadata.broker.list": ("bootstrap_servers", _servers),
    "client.id": ("client_id", _text),
    "security.protocol": ("security_protocol", _one_of(*_PROTOCOLS, upper=True)),
    "sasl.mechanism": ("sasl_mechanism", _one_of(*_MECHANISMS, upper=True)),
    "sasl.mechanisms": ("sasl_mechanism", _one_of(*_MECHANISMS, upper=True)),
    "sasl.username": ("sasl_plain_username", _text),
    "sasl.password": ("sasl_plain_password", _text),
    "ssl.ca.location": ("ssl_cafile", _text),
    "ssl.ca.pem": ("ssl_ca_pem", _text),
    "ssl.certificate.location": ("ssl_certfile", _text),
    "ssl.certificate.pem": ("ssl_cert_pem", _text),
    "ssl.key.location": ("ssl_keyfile", _text),
    "ssl.key.pem": ("ssl_key_pem", _text),
    "ssl.key.password": ("ssl_password", _text),
    "ssl.crl.location": ("ssl_crlfile", _text),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", _check_hostname),
    "enable.ssl.certificate.verification": ("ssl_verify_certificate", _flag),
    "socket.timeout.ms": ("request_timeout_ms", _integer),
    "socket.connection.setup.timeout.ms": ("socket_connection_setup_timeout_ms", _integer),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", _integer),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", _integer),
    "connections.max.idle.ms": ("connections_max_idle_ms", _idle),
    "metadata.max.age.ms": ("metadata_max_age_ms", _integer),
    "client.dns.lookup": (
        "client_dns_lookup",
        _one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    ),
}

# Read by `fetch_limits`.
_FETCH = frozenset(
    {
        "fetch.wait.max.ms",
        "fetch.max.bytes",
        "max.partition.fetch.bytes",
        "fetch.message.max.bytes",
        "message.max.bytes",
        "receive.message.max.bytes",
    }
)

# Properties that affect security or reachability and that the fetcher can't honour. The values listed are harmless.
_REFUSED: Mapping[str, tuple[str, ...]] = {
    "broker.address.family": ("any",),
    "enable.sasl.oauthbearer.unsecure.jwt": ("false",),
    "plugin.library.paths": ("",),
    "sasl.jaas.config": (),
    "sasl.oauthbearer.grant.type": ("client_credentials",),
    "sasl.oauthbearer.metadata.authentication.type": ("none",),
    "ssl.ca.certificate.stores": (),
    "ssl.certificate.verify_cb": (),
    "ssl.cipher.suites": ("",),
    "ssl.curves.list": ("",),
    "ssl.engine.id": (),
    "ssl.engine.location": (),
    "ssl.keystore.location": (),
    "ssl.keystore.password": (),
    "ssl.providers": (),
    "ssl.sigalgs.list": ("",),
    "ssl.truststore.location": (),
}
_REFUSED_PREFIXES = ("sasl.kerberos.", "sasl.oauthbearer.")
_TO_PEM = "openssl pkcs12 -in STORE -out user.pem -nodes makes a PEM file for ssl.certificate.location"
_REMEDIES: Mapping[str, str] = {
    "sasl.jaas.config": "it is Java's; set sasl.username and sasl.password",
    "sasl.oauthbearer.config": "set sasl.oauthbearer.method: oidc with its endpoint and client",
    "sasl.oauthbearer.grant.type": "only client_credentials is supported",
    "ssl.keystore.location": _TO_PEM,
    "ssl.keystore.password": _TO_PEM,
    "ssl.truststore.location": "convert it to a PEM file and set ssl.ca.location",
}

# Tandem sets these itself; a value set by the user would have no effect or break a guarantee.
_OURS: Mapping[str, str] = {
    "isolation.level": "it belongs to the pair and is stored with each generation",
    "check.crcs": "checksums are always verified",
    "allow.auto.create.topics": "a backup never creates what it reads",
    "enable.auto.commit": "positions are kept in the chain",
    "auto.commit.enable": "positions are kept in the chain",
    "auto.offset.reset": "positions are kept in the chain",
    "transactional.id": "Tandem chooses it",
}

# librdkafka's own tuning, producer and consumer-group settings, and settings that would only make the fetcher less
# exact (`client.rack`: the fetcher always reads from leaders). They have no effect on the fetcher.
# fmt: off
_IGNORED = frozenset(
    {
        "acks", "request.required.acks", "api.version.fallback.ms", "api.version.request",
        "api.version.request.timeout.ms", "auto.commit.interval.ms", "batch.num.messages", "batch.size",
        "broker.address.ttl", "broker.version.fallback", "builtin.features", "client.rack", "client.software.name",
        "client.software.version", "compression.codec", "compression.level", "compression.type",
        "consume.callback.max.messages", "coordinator.query.interval.ms", "debug",
        "delivery.report.only.error", "delivery.timeout.ms", "enable.auto.offset.store", "enable.gapless.guarantee",
        "enable.idempotence", "enable.metrics.push", "enable.partition.eof", "enable.random.seed",
        "enable.sparse.connections", "fetch.error.backoff.ms", "fetch.min.bytes", "fetch.queue.backoff.ms",
        "group.id", "group.instance.id", "group.protocol", "group.protocol.type", "group.remote.assignor",
        "heartbeat.interval.ms", "internal.termination.signal", "linger.ms", "log.connection.close", "log.queue",
        "log.thread.name", "log_level", "max.in.flight", "max.in.flight.requests.per.connection",
        "max.poll.interval.ms", "max.poll.records", "message.copy.max.bytes", "message.send.max.retries",
        "message.timeout.ms", "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy",
        "metadata.request.timeout.ms", "offset.store.method", "offset.store.path", "offset.store.sync.interval.ms",
        "partitioner", "partition.assignment.strategy", "produce.offset.report",
        "queue.buffering.backpressure.threshold", "queue.buffering.max.kbytes", "queue.buffering.max.messages",
        "queue.buffering.max.ms", "queued.max.messages.kbytes", "queued.min.messages", "queuing.strategy",
        "reconnect.backoff.jitter.ms", "request.timeout.ms", "retries", "retry.backoff.max.ms", "retry.backoff.ms",
        "session.timeout.ms", "share.acknowledgement.mode", "socket.blocking.max.ms", "socket.keepalive.enable",
        "socket.max.fails", "socket.nagle.disable", "socket.receive.buffer.bytes", "socket.send.buffer.bytes",
        "statistics.interval.ms", "sticky.partitioning.linger.ms", "topic.blacklist",
        "topic.metadata.propagation.max.ms", "topic.metadata.refresh.fast.cnt",
        "topic.metadata.refresh.fast.interval.ms", "topic.metadata.refresh.interval.ms",
        "topic.metadata.refresh.sparse", "transaction.timeout.ms",
    }
)
# fmt: on

KNOWN = frozenset(_MAPPED) | _FETCH | oidc.PROPERTIES | frozenset(_REFUSED) | frozenset(_OURS) | _IGNORED
"""All librdkafka properties that this module knows: mapped, refused or ignored."""

_ALIASES = (
    ("bootstrap.servers", "metadata.broker.list"),
    ("sasl.mechanism", "sasl.mechanisms"),
    ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id"),
    ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret"),
    ("max.partition.fetch.bytes", "fetch.message.max.bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Size limits (bytes) and wait (ms) of one fetch.

    A response may exceed `max_bytes` by one record batch (KIP-74); a frame above `receive_bytes` ends the connection.
    """

    max_wait_ms: int = 500
    max_bytes: int = 8 * _MIB
    partition_max_bytes: int = 2 * _MIB
    receive_bytes: int = 160 * _MIB


def unknown_property(name: str) -> ConfigError:
    """Return the error for a property name that neither client knows; its remedy names the nearest known one."""
    near = difflib.get_close_matches(name, sorted(KNOWN | msk.PROPERTIES), n=1, cutoff=0.6)
    return ConfigError(
        f"kafka: there is no property {name!r}",
        code="TDM-K005",
        remedy=f"did you mean {near[0]}?" if near else "see librdkafka's CONFIGURATION.md for the names",
    )


def servers_of(props: Mapping[str, Value]) -> str:
    """Return the bootstrap servers as the user wrote them, for messages. Raises ConfigError if there are none."""
    value = props.get("bootstrap.servers", props.get("metadata.broker.list"))
    if not value:
        raise ConfigError(
            "kafka: bootstrap.servers is missing", code="TDM-K006", remedy="give host:port of one or more brokers"
        )
    return str(value)


def for_confluent(props: Mapping[str, Value], **extra: object) -> dict[str, object]:
    """Return the configuration for a confluent-kafka client: `props`, then `extra` over them.

    Underscores in the names of `extra` stand for dots, except for callbacks (`error_cb`) and `logger`.
    Names are not checked here: librdkafka checks them, see `unknown_property`. Raises ConfigError if servers are
    missing, or if the settings of a login by tokens can't work. With `aws.msk.iam` a token is signed, which may request
    credentials from AWS: raises ClusterAuthenticationError and ClusterUnreachableError.
    """
    servers_of(props)
    _refuse_both(props)
    props, iam = _written_out(props)
    merged: dict[str, object] = {
        name: str(value).lower() if isinstance(value, bool) else value for name, value in props.items()
    }
    if iam is not None:
        iam.current()  # librdkafka's clients would only say, after 10 s, that there is no token
        merged["oauth_cb"] = iam
    elif _mechanism(props) == "OAUTHBEARER":
        oidc.settings_of(props)  # raises; librdkafka would wait for ever for a token that is never set
    for name, value in extra.items():
        merged[name if name.endswith("_cb") else name.replace("_", ".")] = value
    return merged


def for_kafka_python(props: Mapping[str, Value]) -> dict[str, Any]:
    """Return the configuration for `sink.kafka.wire.connections.open_connections`.

    Opens no file and requests no token yet. Raises ConfigError that names a property which is unknown, contradicts
    another, or can't be honoured by the fetcher.
    """
    servers_of(props)
    _refuse_both(props)
    props, iam = _written_out(props)
    config: dict[str, Any] = {
        "client_id": "tandem",
        "request_timeout_ms": 30_000,
        "reconnect_backoff_ms": 100,
        "reconnect_backoff_max_ms": 10_000,
    }
    for name, value in props.items():
        if name in _MAPPED:
            target, read = _MAPPED[name]
            config[target] = read(name, value)
        else:
            _check_unmapped(name, value)
    limits = fetch_limits(props)
    config["receive_message_max_bytes"] = limits.receive_bytes
    # A long poll must fit into it with room to spare.
    config["request_timeout_ms"] = max(config["request_timeout_ms"], limits.max_wait_ms * 2)
    if config.get("ssl_verify_certificate") is False:
        config["ssl_check_hostname"] = False
    if config.get("ssl_cafile") == "probe":
        del config["ssl_cafile"]  # librdkafka's word for "the system's own", which is the default here
    if iam is not None:
        config["sasl_oauth_token_provider"] = iam
    elif config.get("sasl_mechanism") == "OAUTHBEARER":
        settings = oidc.settings_of(props)
        from tandem.sink.kafka.auth import token_endpoint  # noqa: PLC0415 - an HTTP client, rarely needed

        config["sasl_oauth_token_provider"] = Tokens(
            functools.partial(token_endpoint.request_token, settings), extensions=dict(settings.extensions)
        )
    _check_together(config)
    return config


def _mechanism(props: Mapping[str, Value]) -> str:
    return str(props.get("sasl.mechanism", props.get("sasl.mechanisms", ""))).upper()


def _written_out(props: Mapping[str, Value]) -> tuple[Mapping[str, Value], Tokens | None]:
    """Return `props` with librdkafka's names only, and the source of tokens if `aws.msk.iam` is set."""
    own = {name: props[name] for name in msk.PROPERTIES & props.keys()}
    if not own:
        return props, None
    if not _flag(msk.IAM, own.get(msk.IAM, False)):
        if msk.REGION in own:
            raise ConfigError(
                f"kafka: {msk.REGION} is set without {msk.IAM}: true", code="TDM-K007", remedy="set both or neither"
            )
        return {name: value for name, value in props.items() if name != msk.IAM}, None
    if _mechanism(props) not in ("", "OAUTHBEARER") or str(props.get("security.protocol", "SASL_SSL")).upper() != (
        "SASL_SSL"
    ):
        raise ConfigError(
            f"kafka: {msk.IAM} is another login than sasl.mechanism and security.protocol say",
            code="TDM-K008",
            remedy="take the two out: SASL_SSL and OAUTHBEARER follow from it",
        )
    rivals = sorted(name for name in props if name.startswith(("sasl.oauthbearer.", "sasl.username", "sasl.password")))
    if rivals:
        raise ConfigError(f"kafka: {msk.IAM} leaves no use for {rivals[0]}", code="TDM-K009", remedy="take it out")
    tokens = msk.tokens_for(msk.region_of(own, servers_of(props)))
    rest = {name: value for name, value in props.items() if name not in own and name != "sasl.mechanisms"}
    return rest | {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, tokens


def fetch_limits(props: Mapping[str, Value]) -> FetchLimits:
    """Return the fetch sizes and the wait. Raises ConfigError for a value that is no positive integer."""
    default = FetchLimits()

    def positive(*names: str, default: int) -> int:
        for name in names:
            if name in props:
                value = _integer(name, props[name])
                if value <= 0:
                    raise ConfigError(f"kafka: {name} must be positive, got {value}", code="TDM-K010")
                return value
        return default

    max_bytes = positive("fetch.max.bytes", default=default.max_bytes)
    partition = positive("max.partition.fetch.bytes", "fetch.message.max.bytes", default=default.partition_max_bytes)
    largest = positive("message.max.bytes", default=0)
    receive = positive("receive.message.max.bytes", default=max(default.receive_bytes, max_bytes * 2, largest * 2))
    if receive < max_bytes + 512:
        raise ConfigError(
            f"kafka: receive.message.max.bytes ({receive}) must be at least fetch.max.bytes ({max_bytes}) + 512",
            code="TDM-K011",
        )
    return FetchLimits(
        max_wait_ms=positive("fetch.wait.max.ms", default=default.max_wait_ms),
        max_bytes=max_bytes,
        partition_max_bytes=min(partition, max_bytes),
        receive_bytes=receive,
    )


def _refuse_both(props: Mapping[str, Value]) -> None:
    for one, other in _ALIASES:
        if one in props and other in props and props[one] != props[other]:
            raise ConfigError(
                f"kafka: {one} and {other} are the same property, with two values", code="TDM-K012", remedy="keep one"
            )


def _check_unmapped(name: str, value: Value) -> None:
    if name in _IGNORED or name in _FETCH or name in oidc.PROPERTIES:
        return
    if name in _OURS:
        raise ConfigError(f"kafka: {name} can't be set", code="TDM-K013", remedy=_OURS[name])
    harmless = _REFUSED.get(name)
    if harmless is not None or name.startswith(_REFUSED_PREFIXES):
        if harmless and str(value).lower() in harmless:
            return
        raise ConfigError(
            f"kafka: {name} can't be honoured by the fetcher",
            code="TDM-K014",
            remedy=_REMEDIES.get(name, "remove it; docs/connections.md says what works"),
        )
    raise unknown_property(name)


def _check_together(config: Mapping[str, Any]) -> None:
    protocol = config.get("security_protocol", "PLAINTEXT")
    if protocol.startswith("SASL_"):
        needed = [("sasl_mechanism", "sasl.mechanism")]
        if config.get("sasl_mechanism") != "OAUTHBEARER":
            needed += [("sasl_plain_username", "sasl.username"), ("sasl_plain_password", "sasl.password")]
        for target, name in needed:
            if not config.get(target):
                raise ConfigError(f"kafka: security.protocol is {protocol}, but {name} is missing", code="TDM-K015")
    elif config.get("sasl_plain_username") or config.get("sasl_mechanism"):
        raise ConfigError(
            f"kafka: sasl.* is set, but security.protocol is {protocol}: the credentials would go unused",
            code="TDM-K016",
            remedy="set security.protocol to SASL_SSL (or SASL_PLAINTEXT)",
        )
    if protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
        for target, name in _TLS_NAMES.items():
            if config.get(target):
                raise ConfigError(
                    f"kafka: {name} is set, but security.protocol is {protocol}: nothing would be encrypted",
                    code="TDM-K017",
                    remedy="set security.protocol to SSL or SASL_SSL",
                )
    _check_certificates(config)


def _check_certificates(config: Mapping[str, Any]) -> None:
    for one, other in (("ssl_cafile", "ssl_ca_pem"), ("ssl_certfile", "ssl_cert_pem"), ("ssl_keyfile", "ssl_key_pem")):
        if config.get(one) and config.get(other):
            raise ConfigError(
                f"kafka: {_TLS_NAMES[one]} and {_TLS_NAMES[other]} are both set", code="TDM-K018", remedy="keep one"
            )
    certificate = config.get("ssl_certfile") or config.get("ssl_cert_pem")
    for target in ("ssl_keyfile", "ssl_key_pem"):
        if config.get(target) and not certificate:
            raise ConfigError(
                f"kafka: {_TLS_NAMES[target]} is set without ssl.certificate.location or ssl.certificate.pem",
                code="TDM-K019",
                remedy="set the certificate that belongs to the key",
            )
    if config.get("ssl_cert_pem") and not (config.get("ssl_keyfile") or config.get("ssl_key_pem")):
        raise ConfigError(
            "kafka: ssl.certificate.pem is set without ssl.key.pem",
            code="TDM-K020",
            remedy="set the key, best by ssl.key.pem.file",
        )


_TLS_NAMES: Mapping[str, str] = {
    target: name
    for name, (target, _) in _MAPPED.items()
    if name.startswith("ssl.") and target.endswith(("file", "pem"))
}
