"""`tandem policy`: what it prints for a configuration, and of what it warns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandem.controller.cli.main import run
from tandem.sink.process import log

CONFIG = """\
pair: shop
topics: {include: [customers], patterns: ['orders\\..*']}
kafka: {bootstrap.servers: 'broker:9093', security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512,
        sasl.username: tandem-a, sasl.password: never-shown-anywhere}
store: {root: 's3://acme/prod', region: cn-north-1}
"""
Tandem = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tandem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Tandem]:
    """Runs `tandem policy` on a configuration; returns exit code, stdout, stderr."""
    for name in ("TANDEM_CONFIG", "TANDEM_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "tandem.yaml"

    def call(*arguments: str, text: str = CONFIG) -> tuple[int, str, str]:
        config.write_text(text, encoding="utf-8")
        code = run(["-c", str(config), "policy", *arguments])
        captured = capsys.readouterr()
        assert "never-shown-anywhere" not in captured.out + captured.err
        return code, captured.out, captured.err

    yield call
    log.reset()


def test_a_policy_is_bare_and_a_document_has_its_frame(tandem: Tandem) -> None:
    """The one is for IAM, which knows no other fields; the other for scripts."""
    code, out, err = tandem("s3", "--role", "writer", "--instance", "b")
    assert (code, err) == (0, "")
    bare = json.loads(out)
    assert set(bare) == {"Version", "Statement"}
    deletes = next(one for one in bare["Statement"] if one["Sid"] == "Delete")
    assert deletes["Resource"][0] == "arn:aws-cn:s3:::acme/prod/shop/b/*"
    code, out, _ = tandem("s3", "--role", "writer", "--instance", "b", "-o", "json")
    document = json.loads(out)
    assert (code, document["kind"], document["role"], document["policy"]) == (0, "S3Policy", "writer", bare)
    code, out, _ = tandem("bucket", "-o", "json")
    assert (code, json.loads(out)["role"]) == (0, None)


@pytest.mark.parametrize("role", ["writer --instance a", "viewer"])
@pytest.mark.parametrize(("command", "scheme"), [("gcs", "gs"), ("azure", "az")])
def test_policies_of_other_clouds(tandem: Tandem, command: str, scheme: str, role: str) -> None:
    """Bare and in a frame; only a writer's names the instance's folder; not for a bucket of S3."""
    text = CONFIG.replace("s3://", f"{scheme}://")
    wanted = (command, "--role", *role.split())
    code, out, err = tandem(*wanted, text=text)
    assert (code, err) == (0, "")
    assert ("prod/shop/a/" in out) == (role != "viewer")
    code, framed, _ = tandem(*wanted, "-o", "json", text=text)
    document = json.loads(framed)
    assert (code, document["kind"], document["policy"]) == (0, "CloudPolicy", json.loads(out))
    assert document["role"] == role.partition(" ")[0]
    code, out, err = tandem(*wanted)
    assert (code, out) == (2, "")
    assert f"these rights are for {scheme}://" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("s3 --role writer", "which instance?"),
        ("s3 --role writer --instance c", "c is no instance of the pair"),
        ("s3 --role viewer --instance a", "--instance requires --role writer"),
        ("s3 --role boss", "'boss' is not one of"),
        ("kafka --role viewer --principal tandem", "write User:tandem"),
        ("kafka --role drill --target x.*", "a drill's topics have whole names"),
    ],
)
def test_what_is_wrong_is_named(tandem: Tandem, arguments: str, said: str) -> None:
    """With 2, before anything is printed."""
    code, out, err = tandem(*arguments.split())
    assert (code, out) == (2, "")
    assert said in err


def test_the_instance_of_the_configuration_is_the_writers(tandem: Tandem) -> None:
    """As for `tandem run`."""
    code, out, _ = tandem("s3", "--role", "writer", text=f"{CONFIG}instance: a\n")
    assert code == 0
    assert "acme/prod/shop/a/*" in out


def test_acls_are_lines_for_the_principal_of_the_configuration(tandem: Tandem) -> None:
    """Of a pattern its prefix; who asks no broker gets none, and is told so."""
    code, out, err = tandem("kafka", "--role", "writer")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert all(line.startswith("kafka-acls.sh --bootstrap-server broker:9093 --add ") for line in lines)
    assert all(" --allow-principal User:tandem-a " in line for line in lines)
    assert any(line.endswith("--topic orders. --resource-pattern-type prefixed") for line in lines)
    code, out, err = tandem("kafka", "--role", "janitor")
    assert (code, out) == (0, "")
    assert "asks no broker" in err
    code, out, _ = tandem("kafka", "--role", "janitor", "-o", "json")
    assert (code, json.loads(out)["acls"]) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        ("kafka --role restore", CONFIG, "these rights write to the guarded topics"),
        ("kafka --role drill", CONFIG, "drills of topics that patterns guard are left out"),
        ("kafka --role restore-groups", f"{CONFIG}groups: {{enabled: false}}\n", "no rights on groups"),
        ("kafka --role catch-up", CONFIG.replace("orders\\..*", ".+-changelog"), "these rights are on all topics"),
        (
            "s3 --role viewer",
            CONFIG.replace("region:", "server_side_encryption: 'aws:kms', kms_key_id: alias/x, region:"),
            "store.kms_key_id is no ARN",
        ),
    ],
)
def test_rights_that_reach_too_far_or_not_far_enough_are_warned_of(
    tandem: Tandem, arguments: str, text: str, said: str
) -> None:
    """And printed all the same."""
    code, out, err = tandem(*arguments.split(), text=text)
    assert code == 0
    assert out
    assert "warning: " in err
    assert said in err
    assert "warning" not in tandem("kafka", "--role", "restore", "--target", "x")[2]


def test_a_key_of_kms_is_in_the_policy(tandem: Tandem) -> None:
    """By its ARN, from `encryption` as from the store."""
    key = "arn:aws-cn:kms:cn-north-1:111122223333:key/0000"
    code, out, _ = tandem("s3", "--role", "reader", text=f"{CONFIG}encryption: {{aws_kms_key_arn: '{key}'}}\n")
    assert code == 0
    assert [one["Resource"] for one in json.loads(out)["Statement"] if one["Sid"] == "UseKeys"] == [[key]]


def test_a_folder_has_no_policies(tandem: Tandem) -> None:
    """They are for S3."""
    code, _, err = tandem("bucket", text=CONFIG.replace("s3://acme/prod", "file:///srv/backup"))
    assert code == 2
    assert "policies are for buckets" in err
