"""How librdkafka's property names reach both clients."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.backup_avro.errors import ConfigError
from tandem.sink.kafka.auth.client_config import FetchLimits, fetch_limits, for_confluent, for_kafka_python, servers_of

BASE: dict[str, Any] = {"bootstrap.servers": "one:9092, two:9093"}
SASL: dict[str, Any] = BASE | {
    "security.protocol": "sasl_ssl",
    "sasl.mechanisms": "scram-sha-512",
    "sasl.username": "ann",
    "sasl.password": "hush-hush",
}


def test_everything_that_is_mapped() -> None:
    """Each mapped property arrives under kafka-python's name, read as what it is."""
    config = for_kafka_python(
        SASL
        | {
            "client.id": "me",
            "ssl.ca.location": "/ca.pem",
            "ssl.certificate.location": "/cert.pem",
            "ssl.key.location": "/key.pem",
            "ssl.key.password": "k",
            "ssl.crl.location": "/crl.pem",
            "ssl.endpoint.identification.algorithm": "none",
            "socket.timeout.ms": "61000",
            "socket.connection.setup.timeout.ms": 7,
            "reconnect.backoff.ms": 8,
            "reconnect.backoff.max.ms": 9,
            "connections.max.idle.ms": 10,
            "metadata.max.age.ms": 11,
            "client.dns.lookup": "resolve_canonical_bootstrap_servers_only",
        }
    )
    assert config == {
        "bootstrap_servers": ["one:9092", "two:9093"],
        "client_id": "me",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ann",
        "sasl_plain_password": "hush-hush",
        "ssl_cafile": "/ca.pem",
        "ssl_certfile": "/cert.pem",
        "ssl_keyfile": "/key.pem",
        "ssl_password": "k",
        "ssl_crlfile": "/crl.pem",
        "ssl_check_hostname": False,
        "request_timeout_ms": 61_000,
        "socket_connection_setup_timeout_ms": 7,
        "reconnect_backoff_ms": 8,
        "reconnect_backoff_max_ms": 9,
        "connections_max_idle_ms": 10,
        "metadata_max_age_ms": 11,
        "client_dns_lookup": "resolve_canonical_bootstrap_servers_only",
        "receive_message_max_bytes": FetchLimits().receive_bytes,
    }


def test_values_that_mean_the_default() -> None:
    """`probe`, `https` and an idle time of 0 are librdkafka's ways of saying what is the case anyway."""
    config = for_kafka_python(
        BASE
        | {
            "security.protocol": "ssl",
            "ssl.ca.location": "probe",
            "ssl.endpoint.identification.algorithm": "https",
            "connections.max.idle.ms": 0,
        }
    )
    assert "ssl_cafile" not in config
    assert config["ssl_check_hostname"] is True
    assert config["connections_max_idle_ms"] > 10**8


def test_unverified_certificates_are_an_explicit_choice() -> None:
    """Verification goes off only when told, and takes the host name's check with it, as OpenSSL demands."""
    on = for_kafka_python(BASE | {"security.protocol": "ssl"})
    assert "ssl_verify_certificate" not in on
    off = for_kafka_python(BASE | {"security.protocol": "ssl", "enable.ssl.certificate.verification": False})
    assert (off["ssl_verify_certificate"], off["ssl_check_hostname"]) == (False, False)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.oauthbearer.config",
        "sasl.kerberos.keytab",
        "sasl.jaas.config",
        "ssl.keystore.location",
        "ssl.cipher.suites",
        "ssl.engine.location",
        "plugin.library.paths",
        "broker.address.family",
        "isolation.level",
        "enable.auto.commit",
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name: str) -> None:
    """Nobody believes in a protection, an address family or a mode that the fetcher does not have."""
    with pytest.raises(ConfigError, match=name) as raised:
        for_kafka_python(BASE | {name: "something"})
    assert raised.value.remedy
    assert "something" not in str(raised.value)


def test_harmless_values_of_refused_names() -> None:
    """Spelling out what is the case anyway is no error."""
    for_kafka_python(BASE | {"broker.address.family": "any", "ssl.cipher.suites": ""})


def test_tuning_of_librdkafka_is_ignored() -> None:
    """What only tunes librdkafka changes nothing for the fetcher; neither does a rack: it reads from leaders."""
    tuned = BASE | {"linger.ms": 5, "client.rack": "a", "group.id": "g", "queued.min.messages": 7, "debug": "all"}
    assert for_kafka_python(tuned) == for_kafka_python(BASE)


def test_unknown_names_come_with_the_nearest() -> None:
    """A slip of the pen is named with what was probably meant."""
    with pytest.raises(ConfigError, match=r"'sasl\.user' .*sasl\.username"):
        for_kafka_python(BASE | {"sasl.user": "ann"})
    with pytest.raises(ConfigError, match="TDM-K005"):
        for_kafka_python(BASE | {"zzzzzzzzzzz": "ann"})


@pytest.mark.parametrize(
    ("props", "word"),
    [
        ({"bootstrap.servers": ""}, "bootstrap.servers"),
        ({"bootstrap.servers": " , "}, "bootstrap.servers"),
        (BASE | {"metadata.broker.list": "three:1"}, "metadata.broker.list"),
        (SASL | {"sasl.mechanism": "PLAIN"}, "sasl.mechanisms"),
        (BASE | {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"}, "sasl.password"),
        (BASE | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
        (BASE | {"sasl.username": "u", "sasl.mechanism": "PLAIN"}, "security.protocol"),
        (BASE | {"ssl.ca.location": "/ca.pem"}, "ssl.ca.location"),
        (BASE | {"security.protocol": "TLS"}, "security.protocol"),
        (BASE | {"socket.timeout.ms": "1.5"}, "socket.timeout.ms"),
        (BASE | {"socket.timeout.ms": True}, "socket.timeout.ms"),
        (BASE | {"enable.ssl.certificate.verification": "perhaps"}, "enable.ssl.certificate.verification"),
        (BASE | {"security.protocol": "SSL", "ssl.key.location": "/key.pem"}, "ssl.certificate.location"),
        (BASE | {"fetch.max.bytes": 0}, "fetch.max.bytes"),
        (BASE | {"fetch.max.bytes": 1000, "receive.message.max.bytes": 1000}, "receive.message.max.bytes"),
    ],
)
def test_contradictions_and_nonsense(props: dict[str, Any], word: str) -> None:
    """Missing, contradictory and unreadable values are errors that name the property."""
    with pytest.raises(ConfigError) as raised:
        for_kafka_python(props)
    assert word in str(raised.value)


def test_no_secret_in_any_message() -> None:
    """Whatever is wrong, the password is not in the message."""
    for more in (
        {"security.protocol": "PLAINTEXT"},
        {"nonsense": 1},
        {"sasl.mechanism": "PLAIN"},
        {"ssl.engine.id": 1},
    ):
        with pytest.raises(ConfigError) as raised:
            for_kafka_python(SASL | more)
        assert "hush" not in str(raised.value)


def test_fetch_limits() -> None:
    """Sizes and waits are read under both names; a partition gets no more than a response, a frame has room."""
    assert fetch_limits(BASE) == FetchLimits()
    limits = fetch_limits(
        BASE | {"fetch.max.bytes": 10_000_000, "fetch.message.max.bytes": 20_000_000, "fetch.wait.max.ms": "250"}
    )
    assert (limits.max_bytes, limits.partition_max_bytes, limits.max_wait_ms) == (10_000_000, 10_000_000, 250)
    assert fetch_limits(BASE | {"message.max.bytes": 1_000_000_000}).receive_bytes == 2_000_000_000
    assert fetch_limits(BASE | {"fetch.max.bytes": 200_000_000}).receive_bytes == 400_000_000


def test_a_long_poll_fits_into_its_time_out() -> None:
    """A request is never given up while the broker may still be waiting for records on purpose."""
    config = for_kafka_python(BASE | {"socket.timeout.ms": 1_000, "fetch.wait.max.ms": 5_000})
    assert config["request_timeout_ms"] >= 10_000


def test_for_confluent_passes_through() -> None:
    """All goes on as it is; booleans in librdkafka's spelling; extras win, with dots for underscores."""
    props = SASL | {"enable.metrics.push": False, "group.id": "users"}
    config = for_confluent(props, group_id="ours", auto_offset_reset="earliest")
    assert config == props | {"enable.metrics.push": "false", "group.id": "ours", "auto.offset.reset": "earliest"}
    assert for_confluent(BASE, error_cb=print, logger=None) == BASE | {"error_cb": print, "logger": None}
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        for_confluent({})


def test_servers_for_messages() -> None:
    """Messages show the servers as the user wrote them, under either name."""
    assert servers_of(BASE) == "one:9092, two:9093"
    assert servers_of({"metadata.broker.list": "x:1"}) == "x:1"
