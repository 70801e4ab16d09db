"""`tandem config show` and `schema`, the page of the documentation, and that secrets stay inside."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import yaml

from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.main import run
from tandem.controller.config import Config, load
from tandem.controller.config.reference import page, schema
from tandem.controller.config.sources import keys, sections, variable
from tandem.sink.process import log, safe_text

CANARY = "canary-7f3a9"
ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _fresh_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test configures the log anew and leaves none behind."""
    for name in ("TANDEM_CONFIG", "TANDEM_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    yield
    log.reset()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A configuration with a secret in every place that can hold one."""
    (tmp_path / "secret").write_text(CANARY + "-in-a-file\n")
    path = tmp_path / "a.yaml"
    path.write_text(
        f"""\
pair: airports
topics: {{include: [airports], patterns: ["orders-.*"]}}
kafka:
  bootstrap.servers: localhost:9092
  sasl.password: {CANARY}
  ssl.key.pem: |
    {CANARY}
  ssl.key.password.file: {tmp_path}/secret
  sasl.oauthbearer.client.secret: {CANARY}
  sasl.oauthbearer.assertion.private.key.passphrase: {CANARY}
  sasl.oauthbearer.config: "principal={CANARY}"
  socket.timeout.ms: 3000
store:
  root: s3://bucket/prefix
  access_key_id: {CANARY}
  secret_access_key_file: {tmp_path}/secret
  session_token: {CANARY}
rotation: {{interval: 48h}}
object: {{codec: null}}
"""
    )
    return path


@pytest.mark.parametrize("form", ["yaml", "json", "table"])
def test_secrets_are_masked_in_every_form(form: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values, not keys, are hidden; the rest is there."""
    assert run(["config", "show", "-c", str(path), "-o", form]) == 0
    captured = capsys.readouterr()
    assert CANARY not in captured.out + captured.err
    assert captured.out.count("********") == 9
    assert "sasl.password" in captured.out
    assert "localhost:9092" in captured.out


def test_files_with_secrets_that_others_can_read(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each that any user can read or write is named, with its key and the remedy; a group may read, as in pods."""
    folder = path.parent
    key = folder / "a key"
    key.write_text("x")
    google = folder / "google"
    google.write_text("{}")
    path.write_text(
        f"""\
pair: airports
topics: {{include: [airports]}}
kafka:
  bootstrap.servers: localhost:9092
  security.protocol: SASL_SSL
  sasl.mechanism: PLAIN
  sasl.username: x
  sasl.password.file: {folder}/secret
  ssl.key.location: {folder}/gone
  ssl.certificate.location: {folder}/gone
store: {{root: s3://bucket/prefix, access_key_id: x, secret_access_key: {CANARY}, credentials_file: {folder}/google}}
signing: {{key_file: '{key}', trusted_file: {folder}/trusted}}
"""
    )
    for file, mode in ((path, 0o644), (folder / "secret", 0o646), (key, 0o604), (google, 0o644)):
        file.chmod(mode)
    (folder / "trusted").write_text("")
    assert run(["config", "validate", "-c", str(path)]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "other users" in line]
    can, holds = "other users can", "which holds a secret; run: chmod o="
    assert told == [
        f"warning: kafka.sasl.password.file: {can} read and write {folder}/secret, {holds} {folder}/secret",
        f"warning: store.credentials_file: {can} read {google}, {holds} {google}",
        f"warning: signing.key_file: {can} read {key}, {holds} '{key}'",
        f"warning: configuration: {can} read {path}, {holds} {path}",
    ]
    for file in (path, folder / "secret", key, google):
        file.chmod(0o640)
    assert run(["config", "validate", "-c", str(path)]) == 0
    assert "other users" not in capsys.readouterr().err


def test_shown_documents_say_what_they_are_and_where_values_came_from(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For scripts: version, kind, the nested configuration, and one origin per key."""
    monkeypatch.setenv("TANDEM_FLUSH__INTERVAL", "30")
    arguments = ["config", "show", "-c", str(path), "--set", "recovery.window=2d"]
    assert run([*arguments, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert run(arguments) == 0
    assert yaml.safe_load(capsys.readouterr().out) == document
    assert (document["schemaVersion"], document["kind"]) == (1, "Config")
    shown = document["config"]
    assert shown["rotation"] == {"interval": "2d"}
    assert shown["object"]["target_size"] == "64MiB"
    assert shown["object"]["codec"] == "null"
    assert shown["kafka"]["socket.timeout.ms"] == 3000
    origins = document["origins"]
    assert origins["rotation.interval"] == f"{path}:18"
    assert origins["flush.interval"] == "TANDEM_FLUSH__INTERVAL"
    assert origins["recovery.window"] == "--set recovery.window"
    assert origins["peer.timeout"] == "default"
    assert origins["kafka.ssl.key.password"] == f"{path}:8: {path.parent}/secret"
    assert origins["topics.include"] == f"{path}:2"


def test_what_is_shown_can_be_configured_again(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The `config` part of the document is a configuration with the same meaning, but for the secrets."""
    assert run(["config", "show", "-c", str(path)]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)["config"]
    del shown["store"]["secret_access_key_file"]
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(shown))
    first, second = load(path, {}).model_dump(mode="json"), load(again, {}).model_dump(mode="json")
    del first["store"]["secret_access_key_file"], second["store"]["secret_access_key_file"]
    assert first == second


def test_the_table_is_plain_when_piped(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Key, value and place in aligned columns, no drawing, no colours."""
    assert run(["config", "show", "-c", str(path), "-o", "table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["KEY", "VALUE", "FROM"]
    assert [line.split() for line in lines if line.startswith("rotation.interval")] == [
        ["rotation.interval", "2d", f"{path}:18"]
    ]
    assert len({line.index(line.split()[1], len(line.split()[0])) for line in lines}) == 1
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_secrets_stay_out_of_repr_errors_and_logs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever a configuration, or one of its secrets, may end up by mistake."""
    config = load(path, {})
    assert CANARY not in repr(config) + str(config) + repr(config.kafka) + str(config.model_dump(mode="json"))
    assert CANARY not in config.model_dump_json()
    safe_text.register_secrets(config.secrets())
    formats: tuple[log.Format, ...] = ("json", "console")
    for fmt in formats:
        log.configure(fmt=fmt)
        logger = structlog.get_logger("tandem.controller.test")
        logger.warning("event", config=config, revealed=config.kafka.reveal(), text=f"is {CANARY}")
        try:
            int(f"vendor says {CANARY}")
        except ValueError:
            logger.exception("failed")
    captured = capsys.readouterr()
    assert captured.err.count("vendor says ********") == 2
    assert "is ********" in captured.err
    assert CANARY not in captured.err


def test_secrets_stay_out_of_the_errors_of_loading(path: Path) -> None:
    """Not in the message, not in what hangs on to the exception."""
    with pytest.raises(ConfigError) as caught:
        load(
            path,
            {"TANDEM_STORE__ACCESS_KEY_ID": CANARY, "TANDEM_ROTATION__INTERVAL": "x"},
            [f"kafka.group.id={CANARY}"],
        )
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is None


def test_the_schema_describes_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    """One property per key, unknown ones refused, defaults as a file would have them."""
    assert run(["config", "schema"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == schema()
    assert document["additionalProperties"] is False
    assert set(document["required"]) == {"pair", "topics", "kafka", "store"}
    for key in keys():
        node = document
        for part in key:
            node = node["properties"][part]
            if "$ref" in node:
                node = document["$defs"][node["$ref"].removeprefix("#/$defs/")]
        assert node.get("description"), f"{key} has no description"
    assert document["$defs"]["RotationSettings"]["properties"]["interval"]["default"] == "7d"
    assert document["properties"]["object"]["default"]["target_size"] == "64MiB"
    assert "P7D" not in json.dumps(document)


def test_a_first_file_is_that_of_the_readme_and_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has to type it, and it says at once what is wrong with it: the password is not there yet."""
    assert run(["config", "example"]) == 0
    text = capsys.readouterr().out
    assert f"```yaml\n{text}```" in (Path(__file__).parents[4] / "README.md").read_text("utf-8")
    file, password = tmp_path / "tandem.yaml", tmp_path / "kafka-password"
    file.write_text(text.replace("/run/secrets/kafka-password", str(password)), encoding="utf-8")
    assert run(["config", "validate", "-c", str(file)]) == 2
    assert str(password) in capsys.readouterr().err
    password.write_text("secret\n", encoding="utf-8")
    for kept in (file, password):
        kept.chmod(0o600)
    assert run(["config", "validate", "-c", str(file)]) == 0


def test_every_key_has_its_own_variable() -> None:
    """No two keys share a variable, and none looks like a section's."""
    names = [variable(key) for key in keys()]
    assert len(set(names)) == len(names)
    assert not set(names) & {variable(section) for section in sections()}


def test_the_page_is_up_to_date() -> None:
    """docs/configuration.md is what the model says; `python -m tandem.controller.config.reference` writes it anew."""
    assert (ROOT / "docs" / "configuration.md").read_text() == page()


def test_the_example_of_the_page_is_right(tmp_path: Path) -> None:
    """Nobody copies a broken example; only its secret file is not there."""
    example = page().partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "password").write_text("x")
    path = tmp_path / "a.yaml"
    path.write_text(example.replace("/run/secrets/kafka-password", str(tmp_path / "password")))
    config = load(path, {}, hostname=lambda: "tandem-1")
    assert isinstance(config, Config)
    assert (config.instance, config.warnings()) == ("b", ())


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A configuration with as little as possible."""
    path = tmp_path / "plain.yaml"
    path.write_text(
        "pair: airports\ntopics: {include: [airports]}\n"
        "kafka: {bootstrap.servers: 'localhost:9092'}\nstore: {root: s3://bucket/prefix}\n"
    )
    return path


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("kafka.sasl.user=ann", "sasl.username"),
        ("kafka.sasl.oauthbearer.config=principal=x", "sasl.oauthbearer.config"),
        ("kafka.sasl.mechanism=OAUTHBEARER", "nothing says where tokens come from"),
        ("kafka.aws.msk.iam=true", "aws.msk.region is missing"),
    ],
)
def test_validate_knows_the_properties(
    plain: Path, capsys: pytest.CaptureFixture[str], setting: str, says: str
) -> None:
    """A property that an instance would refuse is refused here."""
    assert run(["config", "validate", "-c", str(plain), "--set", setting]) == 2
    assert says in capsys.readouterr().err


def test_validate_warns_and_says_ok(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings and the good news both go to stderr; stdout stays free."""
    path = plain
    assert run(["config", "validate", "-c", str(path), "--set", "shutdown.grace=1s"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "warning: shutdown.grace: may be too short for the last commit",
        "ok: pair airports, no instance (only `tandem run` needs one), store s3://bucket/prefix",
    ]
