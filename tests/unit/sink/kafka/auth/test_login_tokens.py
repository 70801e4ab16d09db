"""Tokens for SASL OAUTHBEARER: from an OpenID provider, from AWS's signer, and how long they are kept."""

from __future__ import annotations

import base64
import importlib.util
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kafka.errors as kafka_errors
import pytest
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
from support.pairs.profiles import without_credentials
from support.servers.certificates import Authority
from support.servers.token_provider import TokenProvider

from tandem.backup_avro.errors import ConfigError, TandemError
from tandem.sink.kafka.auth import msk, token_endpoint
from tandem.sink.kafka.auth.client_config import for_confluent, for_kafka_python
from tandem.sink.kafka.auth.oidc import OidcSettings, settings_of
from tandem.sink.kafka.auth.tokens import Token, Tokens
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError, ClusterUnreachableError
from tandem.sink.kafka.wire import connections

SECRET = "swordfish-in-the-sea"
OIDC: dict[str, Any] = {
    "bootstrap.servers": "one:9092",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://id.example.org/token",
    "sasl.oauthbearer.client.id": "tandem",
    "sasl.oauthbearer.client.secret": SECRET,
}
MSK: dict[str, Any] = {
    "bootstrap.servers": "b-1.prod.abc123.c2.kafka.eu-central-1.amazonaws.com:9098,b-2.x:9098",
    "aws.msk.iam": True,
}


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Endless:
    """Fetches tokens t1, t2, …; raises `error` while it is set."""

    def __init__(self) -> None:
        self.count = 0
        self.error: TandemError | None = None

    def __call__(self) -> Token:
        """Return the next one."""
        if self.error is not None:
            raise self.error
        self.count += 1
        return Token(value=f"t{self.count}", lifetime_s=100)


def test_a_token_is_kept_for_most_of_its_life() -> None:
    """One is fetched, used until 80 % of its life is over, and then replaced by the next."""
    clock, fetch = Clock(), Endless()
    tokens = Tokens(fetch, now=clock)
    assert [tokens.current()[0].value for _ in range(3)] == ["t1"] * 3
    clock.now += 79
    token, left_s = tokens.current()
    assert (token.value, left_s) == ("t1", 21)
    clock.now += 2
    assert tokens.current()[0].value == "t2"


def test_a_failed_renewal_costs_nothing_while_the_token_is_good() -> None:
    """An endpoint that is away for a while is not asked at every connection; nobody is thrown out early."""
    clock, fetch = Clock(), Endless()
    tokens = Tokens(fetch, now=clock)
    tokens.current()
    fetch.error = ClusterUnreachableError("away", code="TDM-X001")
    clock.now += 85
    assert tokens.current()[0].value == "t1"
    assert tokens.failure is fetch.error
    fetch.error = None
    clock.now += 1
    assert tokens.current()[0].value == "t1", "not asked again yet"
    clock.now += 10
    assert tokens.current()[0].value == "t2"
    assert tokens.failure is None
    fetch.error = ClusterUnreachableError("away", code="TDM-X001")
    clock.now += 99
    with pytest.raises(ClusterUnreachableError):
        tokens.current()


def test_what_each_client_is_given() -> None:
    """Librdkafka gets the end of the token's life as Unix time, kafka-python the token; extensions go along."""
    tokens = Tokens(Endless(), extensions={"a": "1"}, now=Clock(), wall=lambda: 5000.0)
    assert tokens("") == ("t1", 5100.0, "", {"a": "1"})
    provider = connections.with_login({"sasl_oauth_token_provider": tokens})["sasl_oauth_token_provider"]
    assert (provider.token(), provider.extensions()) == ("t1", {"a": "1"})


@pytest.mark.parametrize(
    ("error", "theirs"),
    [
        (ClusterAuthenticationError("no", code="TDM-X001"), kafka_errors.SaslAuthenticationFailedError),
        (ClusterUnreachableError("away", code="TDM-X001"), kafka_errors.KafkaConnectionError),
    ],
)
def test_our_error_comes_back_out_of_kafka_python(error: TandemError, theirs: type[Exception]) -> None:
    """It travels through kafka-python as the cause of one of its own, and is what the user sees in the end."""
    fetch = Endless()
    fetch.error = error
    provider = connections.with_login({"sasl_oauth_token_provider": Tokens(fetch)})["sasl_oauth_token_provider"]
    with pytest.raises(theirs) as raised:
        provider.token()
    assert connections.explain(raised.value, "one:9092") is error


def test_nothing_secret_in_a_repr() -> None:
    """Neither the token nor the client's secret."""
    assert "t1" not in repr(Token(value="t1", lifetime_s=1))
    assert SECRET not in repr(settings_of(OIDC))


def test_settings_under_both_names() -> None:
    """Librdkafka has two names for the client, and both do; scope and extensions are read."""
    props = {
        **{name: value for name, value in OIDC.items() if "client" not in name},
        "sasl.oauthbearer.client.credentials.client.id": "tandem",
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        "sasl.oauthbearer.scope": "a b",
        "sasl.oauthbearer.extensions": "x=1, y=2",
    }
    found = settings_of(props)
    assert (found.client_id, found.client_secret, found.scope) == ("tandem", SECRET, "a b")
    assert found.extensions == (("x", "1"), ("y", "2"))
    assert for_kafka_python(props)["sasl_oauth_token_provider"].extensions == {"x": "1", "y": "2"}
    assert for_confluent(props) == props


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"sasl.oauthbearer.method": "default"}, "sasl.oauthbearer.method: oidc"),
        ({"sasl.oauthbearer.client.id": ""}, "sasl.oauthbearer.client.id"),
        ({"sasl.oauthbearer.client.secret": ""}, "sasl.oauthbearer.client.secret"),
        ({"sasl.oauthbearer.token.endpoint.url": ""}, "sasl.oauthbearer.token.endpoint.url"),
        ({"sasl.oauthbearer.token.endpoint.url": "id.example.org"}, "https://"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://u:hush@id.example.org"}, "credentials go into"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://[1"}, "https://"),
        ({"sasl.oauthbearer.extensions": "x"}, "sasl.oauthbearer.extensions"),
    ],
)
def test_incomplete_oidc_is_refused_for_both_clients(more: dict[str, Any], word: str) -> None:
    """Before any connection: librdkafka by itself would wait for ever for a token."""
    for build in (for_confluent, for_kafka_python):
        with pytest.raises(ConfigError, match=word) as raised:
            build(OIDC | more)
        assert "hush" not in str(raised.value)
        assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "more",
    [
        {"sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer"},
        {"sasl.oauthbearer.config": "principal=x"},
        {"sasl.oauthbearer.assertion.file": "/x"},
        {"sasl.oauthbearer.metadata.authentication.type": "azure_imds"},
    ],
)
def test_other_ways_to_tokens_are_refused_by_name(more: dict[str, Any]) -> None:
    """Only one client could follow them."""
    with pytest.raises(ConfigError, match=next(iter(more))):
        for_kafka_python(OIDC | more)


@pytest.fixture
def provider() -> Iterator[TokenProvider]:
    """A provider that knows the client."""
    with TokenProvider(client_id="tandem", client_secret=SECRET, lifetime_s=77) as found:
        yield found


def client_of(provider: TokenProvider, secret: str = SECRET) -> OidcSettings:
    return OidcSettings(endpoint=provider.url, client_id="tandem", client_secret=secret, scope="kafka backup")


def test_a_token_from_the_endpoint(provider: TokenProvider) -> None:
    """Asked for by the client credentials grant, good for as long as the answer says."""
    token = token_endpoint.request_token(client_of(provider))
    assert token.value.count(".") == 2
    assert token.lifetime_s == 77
    assert provider.asked == ["grant_type=client_credentials&scope=kafka+backup"]


def test_a_server_in_trouble_is_asked_again(provider: TokenProvider) -> None:
    """Two 503s in a row are forgiven; three are told, as something that may pass."""
    provider.answers = [(503, b"")] * 2
    assert token_endpoint.request_token(client_of(provider)).lifetime_s == 77
    provider.answers = [(503, b"")] * 3
    with pytest.raises(ClusterUnreachableError, match="answers 503"):
        token_endpoint.request_token(client_of(provider))


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ((401, b'{"error": "invalid_client", "error_description": "hush"}'), "401 invalid_client"),
        ((400, b'{"error": "<b>hush</b>"}'), r"no token: 400 \(check"),
        ((403, b"[]"), "403"),
        ((302, b""), "302"),
        ((200, b"hush"), "holds no token"),
        ((200, b'{"access_token": "a\\u0001b", "expires_in": 5}'), "holds no token"),
        ((200, b'{"access_token": "abc"}'), "expires_in"),
        ((200, b'{"access_token": "abc", "expires_in": 0}'), "expires_in"),
    ],
)
def test_answers_without_a_token(provider: TokenProvider, answer: tuple[int, bytes], word: str) -> None:
    """One line with the endpoint and what to check; the text of the answer is not repeated."""
    provider.answers = [answer]
    with pytest.raises(ClusterAuthenticationError, match=word) as raised:
        token_endpoint.request_token(client_of(provider))
    assert provider.url in str(raised.value)
    assert "hush" not in str(raised.value)
    assert raised.value.remedy


def test_seconds_in_quotes_are_read_too(provider: TokenProvider) -> None:
    """Some providers write the number as text."""
    provider.answers = [(200, b'{"access_token": "abc", "expires_in": "60"}')]
    assert token_endpoint.request_token(client_of(provider)).lifetime_s == 60


def test_nobody_at_the_endpoint() -> None:
    """That may pass; the address is in the message."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings = OidcSettings(endpoint=f"http://127.0.0.1:{port}/t", client_id="a", client_secret=SECRET)
    with pytest.raises(ClusterUnreachableError, match=f"127.0.0.1:{port}/t does not answer") as raised:
        token_endpoint.request_token(settings)
    assert SECRET not in str(raised.value)


def test_a_ca_that_is_none() -> None:
    """A wrong file and a wrong text are named."""
    for more in ({"ca_location": "/nowhere.pem"}, {"ca_pem": "nonsense"}):
        settings = OidcSettings(endpoint="https://127.0.0.1:1/t", client_id="a", client_secret="b", **more)
        with pytest.raises(ConfigError, match="TDM-K035"):
            token_endpoint.request_token(settings)
    settings = OidcSettings(
        endpoint="https://127.0.0.1:1/t", client_id="a", client_secret="b", ca_pem=Authority("x").pem
    )
    with pytest.raises(ClusterUnreachableError):
        token_endpoint.request_token(settings)


def test_msk_stands_for_tls_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """One setting; brokers' names tell the region; the token is AWS's signed request, made without network."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAMADEUP")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    config: dict[str, Any] = for_confluent(MSK)
    assert (config["security.protocol"], config["sasl.mechanism"]) == ("SASL_SSL", "OAUTHBEARER")
    assert not [name for name in config if name.startswith("aws.")]
    value, ends_at, _, _ = config["oauth_cb"]("")
    other = for_kafka_python(MSK)
    assert (other["security_protocol"], other["sasl_mechanism"]) == ("SASL_SSL", "OAUTHBEARER")
    token, left_s = other["sasl_oauth_token_provider"].current()
    assert 880 < left_s <= 900
    assert ends_at > 1_700_000_000
    for text in (value, token.value):
        url = urlsplit(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
        query = parse_qs(url.query)
        assert url.hostname == "kafka.eu-central-1.amazonaws.com"
        assert query["Action"] == ["kafka-cluster:Connect"]
        assert query["X-Amz-Credential"][0].startswith("AKIAMADEUP/")
        assert query["X-Amz-Expires"] == ["900"]
        assert SECRET not in url.query


def test_msk_without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The SDK finds none: one line that says where it looks."""
    without_credentials(monkeypatch, tmp_path)
    with pytest.raises(ClusterAuthenticationError, match="no credentials") as raised:
        msk.sign_token("eu-central-1")
    assert "docs/connections.md" in str(raised.value)


def test_msk_while_aws_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """That may pass: no reason for an instance to end."""

    class EndpointConnectionError(Exception):
        """As the SDK's is named."""

    def fail(_: str) -> None:
        raise EndpointConnectionError

    monkeypatch.setattr(MSKAuthTokenProvider, "generate_auth_token", fail)
    with pytest.raises(ClusterUnreachableError, match="EndpointConnectionError"):
        msk.sign_token("eu-central-1")


def test_msk_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that names the extra."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for build in (for_confluent, for_kafka_python):
        with pytest.raises(ConfigError, match=r"pip install 'tandem-kafka-backup\[msk\]'"):
            build(MSK)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"sasl.mechanism": "PLAIN"}, "another login"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "another login"),
        ({"sasl.username": "u"}, "sasl.username"),
        ({"sasl.oauthbearer.method": "oidc"}, "sasl.oauthbearer.method"),
        ({"bootstrap.servers": "one:9098"}, "aws.msk.region is missing"),
        ({"aws.msk.region": "Frankfurt"}, "aws.msk.region"),
        ({"aws.msk.iam": "perhaps"}, "aws.msk.iam"),
        ({"aws.msk.iam": False, "aws.msk.region": "eu-central-1"}, "without aws.msk.iam"),
        ({"aws.msk.reigon": "x"}, "aws.msk.region"),
    ],
)
def test_msk_and_what_contradicts_it(more: dict[str, Any], word: str) -> None:
    """Each contradiction is named."""
    with pytest.raises(ConfigError, match=word):
        for_kafka_python(MSK | more)


def test_msk_switched_off_is_nothing() -> None:
    """`false` leaves everything as it was."""
    plain = {"bootstrap.servers": "one:9092"}
    assert for_confluent(plain | {"aws.msk.iam": False}) == plain
    assert for_kafka_python(plain | {"aws.msk.iam": False}) == for_kafka_python(plain)


@pytest.mark.parametrize(
    ("servers", "region"),
    [
        ("boot-x.c1.kafka-serverless.us-east-1.amazonaws.com:9098", "us-east-1"),
        ("b-1.x.y.c4.kafka.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("b-1.x.y.c4.kafka.cn-north-1.amazonaws.com.cn:9098", "cn-north-1"),
        ("own.name:1, b-1.x.y.c4.kafka.ap-southeast-2.amazonaws.com:9198", "ap-southeast-2"),
    ],
)
def test_regions_in_names(servers: str, region: str) -> None:
    """MSK's names tell the region; `aws.msk.region` wins."""
    assert msk.region_of({}, servers) == region
    assert msk.region_of({"aws.msk.region": "eu-west-1"}, servers) == "eu-west-1"
