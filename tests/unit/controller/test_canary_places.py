"""A canary in every place that takes a secret, by the configuration's own model: no output shows one of them."""

from __future__ import annotations

import gzip
import io
import json
import re
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import jsonschema
import pytest
import yaml
import zstandard
from support.pages import canaries
from support.pages.canaries import Place, appearances, canary, filled, places, unclassified

from tandem.backup_avro.errors import TandemError
from tandem.controller.cli.main import run
from tandem.controller.cli.output import output
from tandem.controller.config import load
from tandem.controller.config.derived_settings import store_settings
from tandem.controller.config.sources import KAFKA, ValueShape, keys, variable
from tandem.controller.instance.wiring import workers_of
from tandem.sink.process import log, safe_text
from tandem.spark_jobs.reading.object_reader import StoreAddress

CHART_SCHEMA = Path(__file__).parents[3] / "helm" / "tandem" / "values.schema.json"
PLACES = places()
BASE: Mapping[str, Mapping[str, Any]] = {
    "topics": {"include": ["orders"]},
    "kafka": {"bootstrap.servers": "127.0.0.1:1"},
    "store": {"root": "s3://bucket/prefix"},
}


@pytest.fixture(autouse=True)
def _fresh_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of one test hides something in the next, nor does what the machine has set."""
    for name in ("TANDEM_CONFIG", "TANDEM_DEBUG", *canaries.OF_SDKS):
        monkeypatch.delenv(name, raising=False)
    log.reset()
    yield
    log.reset()


def planted(place: Place, secret: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """Put the canary in its place; return the configuration's file and the flags."""
    for name, text in place.files.items():
        (folder / name).write_text(filled(text, secret, folder))
    for name, text in place.environ.items():
        monkeypatch.setenv(name, filled(text, secret, folder))
    settings: dict[str, Any] = {"pair": "shop", **{section: dict(given) for section, given in BASE.items()}}
    for section, given in place.settings.items():
        settings.setdefault(section, {}).update(filled(given, secret, folder))
    path = folder / "tandem.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path, [word for flag in place.flags for word in ("--set", filled(flag, secret, folder))]


def test_there_are_places_of_every_kind() -> None:
    """The list follows from the model; should that walk find nothing any more, this says so."""
    names = {place.name for place in PLACES}
    assert {"a key as encryption.key_file in the file", "a private key in PEM as signing.key_file in the file"} <= names
    assert len(names) == len(PLACES) > 60
    assert {"store.session_token in a file of its own", "kafka.ssl.key.pem in the environment"} <= names
    assert {"the file that signing.key_file names", "the variable that encryption.decrypt_key_envs names"} <= names
    assert {"credentials in encryption.aws_kms_endpoint_url", "the password in https_proxy"} <= names


def test_no_key_takes_a_secret_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new key that looks like one has to be a `Secret`, or be classified in tests/support/pages/canaries.py."""
    assert unclassified() == []
    monkeypatch.setattr(canaries, "keys", lambda: {**keys(), ("store", "upload_token"): ValueShape.SCALAR})
    assert unclassified() == ["store.upload_token"]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_no_command_shows_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What shows and checks the configuration does not, nor do tracebacks; where it is out of place it is refused."""
    secret = place.secret()
    path, flags = planted(place, secret, tmp_path, monkeypatch)
    commands = [["config", "show", "-o", form] for form in ("yaml", "json", "table")]
    for words in (
        *commands,
        ["config", "validate"],
        ["--debug", "config", "validate"],
        ["list", "--root", "file:///x"],
    ):
        code = run([*words, "-c", str(path), *flags])
        captured = capfd.readouterr()
        assert appearances(captured.out + captured.err, {place.name: secret}) == [], words
        if words[:2] == ["config", "show"]:
            assert (code == 2) is place.refused, captured.err
            if place.make is not canary:
                assert secret not in safe_text.redact(f"a later line with {secret}")
        log.reset()


@pytest.mark.parametrize(
    "place", [place for place in PLACES if not place.refused and not place.files], ids=lambda place: place.name
)
def test_what_is_made_of_it_does_not_show_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not the repr of what flows, not a log line that has it, not the report of a crash."""
    secret = place.secret()
    path, _ = planted(place, secret, tmp_path, monkeypatch)
    environ = {name: filled(text, secret, tmp_path) for name, text in place.environ.items()}
    config = load(path, environ | {"TANDEM_INSTANCE": "a"})
    address = StoreAddress(root=config.store.root, settings=store_settings(config))
    made = [config, config.kafka, config.store, address, workers_of(config, config.kafka.reveal())]
    assert appearances(" ".join(map(repr, made)), {place.name: secret}) == []

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError(f"the vendor says {secret} and {json.dumps(secret)}")

    monkeypatch.setattr("tandem.controller.status.outside_view.store_for_looking", crash)
    assert run(["--debug", "status", "-c", str(path)]) == 1
    captured = capfd.readouterr()
    assert "the vendor says ********" in captured.err
    assert appearances(captured.out + captured.err, {place.name: secret}) == []


def test_the_lines_of_a_key_are_hidden_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A parser may repeat the line on which it gave up."""
    lines = [canary("line one"), canary("line two")]
    key = "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----"])
    safe_text.register_secrets([key])
    assert safe_text.redact(f"bad line {lines[1]}, after -----BEGIN PRIVATE KEY-----").startswith(
        "bad line ********, after -"
    )
    assert capsys.readouterr().out == ""


def test_values_of_the_chart_have_no_room_for_it() -> None:
    """Values end up in a ConfigMap: the chart's schema refuses each secret there, and among the plain variables."""
    document = json.loads(CHART_SCHEMA.read_text())
    for path in [path for path, shape in keys().items() if shape is ValueShape.SECRET] + [
        (KAFKA, name) for name in canaries.SENSITIVE
    ]:
        definitions = {"definitions": document["definitions"]}
        config = jsonschema.Draft7Validator(definitions | {"$ref": "#/definitions/config"})
        assert not config.is_valid({path[0]: {path[1]: "x"}}), path
        env = jsonschema.Draft7Validator(definitions | {"$ref": "#/definitions/plainVariables"})
        assert not env.is_valid({variable(path): "x"}), path
    for name in canaries.OF_SDKS:
        env = jsonschema.Draft7Validator(
            {"definitions": document["definitions"], "$ref": "#/definitions/plainVariables"}
        )
        assert not env.is_valid({name: "x"}), name


# --- the search finds what there is to find ---------------------------------------------------------------------------

SECRET = canary("the planted one")


@pytest.mark.parametrize("form", list(canaries.forms(SECRET)))
def test_a_leak_is_found_in_every_form(form: str) -> None:
    """As it is, in URLs, JSON, hex, and in base64 of something longer, at each of three offsets."""
    assert appearances(b"before " + canaries.forms(SECRET)[form] + b" after", {"it": SECRET})


@pytest.mark.parametrize("text", ["{}", "me:{}", "tandem:{}", "xy{}z", "grant {} more"])
def test_a_login_header_is_found(text: str) -> None:
    """User and password together in base64, as HTTP Basic has them."""
    import base64  # noqa: PLC0415

    header = "Authorization: Basic " + base64.b64encode(text.format(SECRET).encode()).decode()
    assert appearances(header, {"it": SECRET})
    assert not appearances(header, {"it": canary("another one")})


def test_what_is_packed_is_opened() -> None:
    """gzip, zstandard, and the compressed records of an Avro file."""
    body = f'{{"is": {json.dumps(SECRET)}}}'.encode()
    schema = {"type": "record", "name": "r", "fields": [{"name": "v", "type": "bytes"}]}
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(schema), [{"v": SECRET.encode()}], codec="deflate")
    for packed in (gzip.compress(body), zstandard.compress(body), gzip.compress(zstandard.compress(body))):
        assert appearances(packed, {"it": SECRET})
        assert SECRET.encode() not in packed
    assert appearances(file.getvalue(), {"it": SECRET})


def test_a_planted_leak_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without what hides them, `config show` and the report of a crash are caught."""
    place = next(place for place in PLACES if place.name == "kafka.sasl.password in the file")
    path, _ = planted(place, SECRET, tmp_path, monkeypatch)
    for module in ("kafka", "loading"):
        monkeypatch.setattr(f"tandem.controller.config.{module}.is_secret", lambda _: False)
    assert run(["config", "show", "-c", str(path)]) == 0
    assert appearances(capfd.readouterr().out, {"it": SECRET})
    monkeypatch.undo()
    log.reset()

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError(f"the vendor says {SECRET}")

    monkeypatch.setattr("tandem.controller.status.outside_view.store_for_looking", crash)
    monkeypatch.setattr(output, "redact", lambda text: text)
    assert run(["status", "-c", str(path)]) == 1
    assert appearances(capfd.readouterr().err, {"it": SECRET})


def test_what_a_target_is_given_stays_hidden(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`--target-config` has secrets of its own, which a wrong file does not show, either."""
    from tandem.controller.cli.options.target_cluster import target_properties  # noqa: PLC0415

    secret = canary("target")
    for text in (
        yaml.safe_dump({"bootstrap.servers": "h:1", "sasl.password": secret, "group.id": secret}),
        yaml.safe_dump({"bootstrap.servers": f"me:{secret}@h:1"}),
        f"bootstrap.servers: h:1\nsasl.password: [{secret}",
    ):
        path = tmp_path / "target.yaml"
        path.write_text(text)
        with pytest.raises(TandemError) as caught:
            target_properties(None, None, path)
        assert appearances(str(caught.value), {"it": secret}) == []
        assert appearances("".join(traceback.format_exception(caught.value)), {"it": secret}) == []
    path.write_text(yaml.safe_dump({"bootstrap.servers": "h:1", "sasl.password": secret}))
    assert target_properties(None, None, path)["sasl.password"] == secret
    assert re.fullmatch(r"is \*+", safe_text.redact(f"is {secret}"))
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("servers", ["me:{}@host:9092", "host:9092,SASL_SSL://me:{}@other:9092"])
def test_addresses_on_the_command_line_hold_no_credentials(servers: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Others see a command line; what is refused is not repeated."""
    secret = canaries.plain_canary("target")
    words = ["restore", "--root", "file:///x", "--pair", "p", "--target-bootstrap-servers", servers.format(secret)]
    assert run(words) == 2
    captured = capfd.readouterr()
    assert "[TDM-C027]" in captured.err
    assert appearances(captured.out + captured.err, {"target": secret}) == []
