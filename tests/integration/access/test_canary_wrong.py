"""Commands whose logins are refused, whose servers are away, speak no TLS, or repeat what they were sent: no canary.

They run in this process, with tracebacks and librdkafka's debug output on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.pages.canaries import appearances, canary, in_files, plain_canary
from support.servers.certificates import Authority
from support.servers.echoing import echoing

from tandem.controller.cli.main import run
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports
from tandem.controller.sandbox.s3 import S3Server
from tandem.sink.process import log

pytestmark = pytest.mark.integration

LOOKING = (["list"], ["check", "--timeout", "4"])
ALL = (
    *LOOKING,
    ["status", "-o", "json"],
    ["history"],
    ["describe", "1"],
    ["failover", "--yes"],
    ["reinit", "a", "--yes"],
    ["pause", "--for", "1h"],
    ["resume"],
    ["keys"],
    ["report", "--html", "report.html"],
    ["coordination", "tail"],
    ["checkpoint", "create", "--id", "x"],
    ["checkpoint", "list"],
    ["records", "--topic", "t", "--key", "k"],
    ["export", "--topics", "t", "--format", "jsonl", "--to", "out"],
    ["verify"],
    ["restore", "--dry-run"],
    ["restore", "groups", "--restore", "0123456789abcdef"],
    ["retention"],
    ["release", "t", "--yes"],
    ["catch-up"],
    ["drill"],
)


@pytest.fixture
def planted() -> dict[str, str]:
    """One canary for each secret of the configuration below."""
    names = ("sasl.password", "ssl.key.password", "client.secret", "secret_access_key", "session_token", "access_key")
    return {name: plain_canary(name) for name in names} | {"encryption": canary("encryption")}


@pytest.fixture
def echo() -> Iterator[str]:
    """Host and port of a server that repeats what it is sent."""
    with echoing() as url:
        yield url.removeprefix("http://")


@pytest.fixture(autouse=True)
def _fresh_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield
    log.reset()


def settings_of(planted: Mapping[str, str], *, kafka: Mapping[str, Any], endpoint_url: str) -> dict[str, Any]:
    """A configuration that holds all canaries."""
    return {
        "pair": "shop",
        "instance": "a",
        "topics": {"include": ["t"]},
        "kafka": {"debug": "all", "socket.connection.setup.timeout.ms": 2000, **kafka},
        "store": {
            "root": "s3://bucket/prefix",
            "endpoint_url": endpoint_url,
            "region": "eu-central-1",
            "addressing_style": "path",
            "access_key_id": planted["access_key"],
            "secret_access_key": planted["secret_access_key"],
            "session_token": planted["session_token"],
        },
        "encryption": {"key_env": "KEY_OF_A_TEST"},
        "log": {"level": "debug"},
    }


def password(planted: Mapping[str, str], servers: str) -> dict[str, Any]:
    """A login by password."""
    return {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "tandem",
        "sasl.password": planted["sasl.password"],
    }


def scenes(planted: Mapping[str, str], folder: Path, kafka: KafkaServer, s3: S3Server, echo: str) -> dict[str, Any]:
    """What goes wrong, and the configuration for it."""
    (away,) = pick_ports(1)
    issued = Authority("Tests").issue("tandem", password=planted["ssl.key.password"])
    (folder / "tandem.key").write_text(issued.key)
    (folder / "tandem.crt").write_text(issued.certificate)
    tls = {
        "bootstrap.servers": echo,
        "security.protocol": "SSL",
        "ssl.certificate.location": str(folder / "tandem.crt"),
        "ssl.key.location": str(folder / "tandem.key"),
        "ssl.key.password": planted["ssl.key.password"],
    }
    tokens = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": f"http://{echo}/token",
        "sasl.oauthbearer.client.id": "tandem",
        "sasl.oauthbearer.client.secret": planted["client.secret"],
    }
    local = f"http://{LOOPBACK}"
    return {
        "nobody listens": (password(planted, f"{LOOPBACK}:{away}"), f"{local}:{away}"),
        "what was sent is repeated": (password(planted, echo), f"http://{echo}"),
        "the logins are wrong": (password(planted, kafka.bootstrap), s3.endpoint_url),
        "no TLS is spoken": (tls, f"https://{echo}"),
        "the provider repeats the login": (tokens, s3.endpoint_url),
    }


QUICK = ("what was sent is repeated",)
SLOW = ("nobody listens", "the logins are wrong", "no TLS is spoken", "the provider repeats the login")


@pytest.mark.parametrize(
    ("scene", "commands"),
    [
        *(pytest.param(scene, LOOKING, id=scene) for scene in QUICK),
        *(pytest.param(scene, ALL, id=f"all, {scene}", marks=pytest.mark.slow) for scene in (*QUICK, *SLOW)),
    ],
)
def test_no_command_tells(
    scene: str,
    commands: tuple[list[str], ...],
    *,
    planted: dict[str, str],
    echo: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Each fails, says why, and shows nothing of any secret, in no form, nor leaves it in a file."""
    kafka: KafkaServer = request.getfixturevalue("kafka")
    s3: S3Server = request.getfixturevalue("s3")
    props, url = scenes(planted, tmp_path, kafka, s3, echo)[scene]
    config = tmp_path / "tandem.yaml"
    config.write_text(yaml.safe_dump(settings_of(planted, kafka=props, endpoint_url=url)))
    monkeypatch.setenv("KEY_OF_A_TEST", planted["encryption"])
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TMPDIR", str(work))
    for words in (*commands, ["run"]):
        capfd.readouterr()
        if words == ["run"] and scene in {"nobody listens", "no TLS is spoken"}:
            continue  # it would wait for them for ever
        code = run(["--debug", *words, "-c", str(config)])
        captured = capfd.readouterr()
        said = captured.out + captured.err
        assert code != 0, (words, said)
        assert "Usage: " not in said, (words, "it did not run at all")
        assert appearances(said, planted) == [], words
        assert said.strip(), words
    assert in_files([work], planted) == []
