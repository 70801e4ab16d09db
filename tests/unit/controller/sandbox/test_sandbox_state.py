"""What the sandbox remembers and prints, without a server."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tandem.controller.cli.run.sandbox import app, how_to_reach
from tandem.controller.config.model import Config
from tandem.controller.sandbox.errors import JavaUnfitError, PartMissingError, StateDamagedError
from tandem.controller.sandbox.kafka import SANDBOX_SETTINGS
from tandem.controller.sandbox.s3 import S3Server
from tandem.controller.sandbox.sandbox import Endpoints, Sandbox
from tandem.controller.sandbox.sigv4 import S3Key

ENDPOINTS = Endpoints(
    bootstrap_servers="127.0.0.1:9092",
    s3_endpoint_url="http://127.0.0.1:8333",
    region="us-east-1",
    bucket="tandem",
    access_key="sandbox",
    secret_key="hush",
)


def test_no_sandbox_there(tmp_path: Path) -> None:
    """Status says so with exit code 3, down has nothing to do; neither makes the folder."""
    folder = tmp_path / "none"
    asked = CliRunner().invoke(app, ["status", "--dir", str(folder)])
    assert asked.exit_code == 3
    assert "tandem sandbox up" in asked.stdout
    ended = CliRunner().invoke(app, ["down", "--dir", str(folder)])
    assert ended.exit_code == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"v": 1}', '{"v": 99}', '{"v": 1, "access_key": "a", "secret_key": "b", "kafka": {"ports": 3}}'],
)
def test_a_damaged_memory_is_named(tmp_path: Path, content: str) -> None:
    """Nothing is guessed from a file that `up` did not write, as a guess might end somebody's process."""
    (tmp_path / "sandbox.json").write_text(content, encoding="ascii")
    for use in (Sandbox(tmp_path).status, Sandbox(tmp_path).down):
        with pytest.raises(StateDamagedError, match=re.escape(str(tmp_path / "sandbox.json"))):
            use()


def test_up_without_java_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy comes at once, before any folder is made."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaUnfitError, match="install a Java runtime 17 or newer"):
        Sandbox(tmp_path / "box").up()
    assert not (tmp_path / "box").exists()


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    """A file in the way is named together with the option that leads around it."""
    (tmp_path / "file").touch()
    with pytest.raises(PartMissingError, match=r"file.*--dir"):
        Sandbox(tmp_path / "file" / "box").up()


def test_the_printed_configuration_is_one() -> None:
    """The snippet, put into a file with a name and topics, is a valid configuration for this S3 server."""
    text = how_to_reach(ENDPOINTS)
    begin = text.index("# kafka:")
    snippet = yaml.safe_load(re.sub(r"^# ", "", text[begin:], flags=re.MULTILINE))
    config = Config.model_validate({"pair": "demo", "instance": "a", "topics": {"include": ["x"]}, **snippet})
    assert config.store.endpoint_url == ENDPOINTS.s3_endpoint_url
    assert config.store.root == "s3://tandem/backup"
    assert config.coordination.replication_factor == 1


def test_the_printed_text_can_be_given_to_a_shell() -> None:
    """Every line is a comment, an export or empty."""
    assert all(re.fullmatch(r"|#.*|export [A-Z_]+=\S+", line) for line in how_to_reach(ENDPOINTS).splitlines())


def test_the_secret_is_kept_from_representations_and_status(tmp_path: Path) -> None:
    """It is printed by `up`, which is asked for it, and nowhere else."""
    state = {"v": 1, "bucket": "tandem", "access_key": "sandbox", "secret_key": "hush"}
    life: dict[str, object] = {"ports": {}, "process": None}
    (tmp_path / "sandbox.json").write_text(json.dumps({**state, "kafka": life, "s3": life}), encoding="ascii")
    for form in ("table", "json", "yaml"):
        asked = CliRunner().invoke(app, ["status", "--dir", str(tmp_path), "-o", form])
        assert asked.exit_code == 3
        assert "stopped" in asked.stdout
        assert "hush" not in asked.output
    assert "hush" not in repr(ENDPOINTS)


def compose() -> dict[str, dict[str, dict[str, object]]]:
    text = (Path(__file__).parents[4] / "compose.yaml").read_text(encoding="utf-8")
    services: dict[str, dict[str, dict[str, object]]] = yaml.safe_load(text)["services"]
    return services


def test_docker_gets_the_same_broker_settings() -> None:
    """Every setting of the sandbox's broker stands in compose.yaml with the same value."""
    given = compose()["kafka"]["environment"]
    assert {key: given.get(f"KAFKA_{key.upper().replace('.', '_')}") for key in SANDBOX_SETTINGS} == SANDBOX_SETTINGS


def test_docker_gets_the_same_s3_settings(tmp_path: Path) -> None:
    """Every flag of the sandbox's S3 server that is no port, address or path stands in compose.yaml likewise."""
    server = S3Server(
        tmp_path,
        bucket="tandem",
        key=S3Key(access_key="a", secret_key="b"),
        ports=dict.fromkeys(S3Server.port_names, 1),
    )
    local = {flag.removesuffix("=true") for flag in server._command()[2:]}
    other_place = re.compile(r"-(dir|ip|ip\.bind|s3\.config|.*\.port(\.grpc)?|.*Socket)=")
    assert {flag for flag in local if not other_place.match(flag)} <= set(compose()["s3"]["command"])


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs and settings have known names there, and a link under one of them would lead out of the folder."""
    box = tmp_path / "box"
    box.mkdir()
    box.chmod(0o777)
    with pytest.raises(PartMissingError, match="TDM-D023"):
        Sandbox(box).up()
    box.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: box.stat().st_uid + 1)
    with pytest.raises(PartMissingError, match="TDM-D023"):
        Sandbox(box).up()
    assert list(box.iterdir()) == []
