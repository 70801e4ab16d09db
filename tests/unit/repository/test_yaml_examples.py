"""Each YAML example of README and docs is parsed as what it is: a configuration, values of the chart, or an object.

The values of the chart on its own pages are in `test_chart_golden.py`.
"""

from __future__ import annotations

import base64
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tandem.controller.config import load
from tandem.controller.roles.kafka import Acl, acls, scope_of
from tandem.controller.roles.role import CredentialRole

ROOT = Path(__file__).parents[3]
BASE = {
    "pair": "orders",
    "topics": {"include": ["customers"]},
    "kafka": {"bootstrap.servers": "kafka:9092"},
    "store": {"root": "s3://acme-kafka-backup/prod"},
}
STRIMZI = "docs/strimzi.md"
_BLOCK = re.compile(r"^( *)```yaml\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SECRET = re.compile(r"/run/secrets/[\w./-]+")


def examples() -> Iterator[tuple[str, str]]:
    """Yield each block with the page and line that it begins in."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text("utf-8")
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{page.relative_to(ROOT)}:{line}", textwrap.dedent(match[2])


EXAMPLES = dict(examples())


def kind_of(document: dict[str, Any]) -> str:
    """Whether a document is an object of Kubernetes, values of the chart, or a configuration."""
    if "apiVersion" in document:
        return "object"
    return "values" if {"defaults", "pairs", "metrics"} & document.keys() else "configuration"


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    """The examples of one kind, by their places."""
    read = {place: yaml.safe_load(text) for place, text in EXAMPLES.items()}
    return {place: document for place, document in read.items() if kind_of(document) == kind}


def with_secrets(text: str, folder: Path) -> str:
    """Put a file in place of each secret's path, and 32 bytes in place of a key that is cut off by `…`.

    Files whose names say so hold a data key, all others a line of text.
    """
    key = base64.b64encode(bytes(32)).decode()

    def file(match: re.Match[str]) -> str:
        path = folder / match[0].strip("/").replace("/", "-")
        path.write_text(key if "data" in match[0] else "secret")
        return str(path)

    return re.sub(r'"\w+…=?"', f'"{key}"', _SECRET.sub(file, text))


@pytest.mark.parametrize("place", of_kind("configuration"))
def test_a_configuration_loads(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole files as they stand; sections with the least that a file needs besides."""
    shown = yaml.safe_load(with_secrets(EXAMPLES[place], tmp_path))
    scheme = str(shown.get("store", {}).get("root", "s3")).partition(":")[0]
    path = tmp_path / "tandem.yaml"
    both = {**BASE, **shown, "kafka": {**BASE["kafka"], **shown.get("kafka", {})}}
    both["store"] = {**(BASE["store"] if scheme == "s3" else {}), **shown.get("store", {})}
    path.write_text(yaml.safe_dump(both))
    monkeypatch.chdir(tmp_path)
    found = load(path, {}, hostname=lambda: "tandem-orders-0")
    assert found.pair == both["pair"]


@pytest.mark.parametrize("place", of_kind("values"))
def test_values_fit_the_chart(place: str) -> None:
    """On any page; some show only what pairs share."""
    schema = json.loads((ROOT / "helm" / "tandem" / "values.schema.json").read_text("utf-8"))
    jsonschema.Draft7Validator(schema).validate({"pairs": [{"name": "x"}], **yaml.safe_load(EXAMPLES[place])})


@pytest.mark.parametrize("place", of_kind("object"))
def test_an_object_says_what_it_is(place: str) -> None:
    """Of Strimzi's present API, for one cluster, with a name that Kubernetes takes."""
    document = yaml.safe_load(EXAMPLES[place])
    assert document["apiVersion"] == "kafka.strimzi.io/v1"
    assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", document["metadata"]["name"])
    assert document["metadata"]["labels"] == {"strimzi.io/cluster": "prod"}
    assert document["spec"]


def strimzi_acls(name: str) -> set[Acl]:
    """The ACLs of a KafkaUser of the page, in our own words."""
    (user,) = [one for one in of_kind("object").values() if one["metadata"]["name"] == name]
    kinds = {"topic": "topic", "group": "group", "transactionalId": "transactional-id"}
    return {
        Acl(
            resource=kinds[rule["resource"]["type"]],  # type: ignore[arg-type]
            name=rule["resource"]["name"],
            operations=tuple(rule["operations"]),
            prefixed={"literal": False, "prefix": True}[rule["resource"]["patternType"]],
        )
        for rule in user["spec"]["authorization"]["acls"]
    }


def test_users_of_strimzi_have_the_rights_of_their_roles() -> None:
    """Those that `tandem policy kafka` prints for the pair of the page, no more and no less."""
    values = next(one for place, one in of_kind("values").items() if place.startswith(STRIMZI))
    topics = values["pairs"][0]["config"]["topics"]
    scope = scope_of(
        topics=topics["include"],
        expressions=topics["patterns"],
        coordination="_compacted_log_backup_coordination",
        groups=[],
    )
    assert strimzi_acls("tandem-orders") == {*acls(scope, CredentialRole.WRITER)}
    groups = {acl for acl in acls(scope, CredentialRole.RESTORE_GROUPS) if acl.resource == "group"}
    assert strimzi_acls("tandem-restore") == {*acls(scope, CredentialRole.RESTORE), *groups}


def allowed(found: set[Acl]) -> set[tuple[str, str, bool, str]]:
    """Single rights, with those that Kafka's authorizer derives: each of Read, Write and Delete implies Describe."""
    rights = {(acl.resource, acl.name, acl.prefixed, one) for acl in found for one in acl.operations}
    return rights | {(*right[:3], "Describe") for right in rights if right[3] in {"Read", "Write", "Delete"}}


def test_the_user_of_the_instances_does_for_their_jobs() -> None:
    """The page says so of verify, operator and viewer, which have the same pair."""
    scope = scope_of(
        topics=["customers", "_schemas"],
        expressions=["orders\\..*"],
        coordination="_compacted_log_backup_coordination",
        groups=[],
    )
    mine = allowed(strimzi_acls("tandem-orders"))
    for role in (CredentialRole.VERIFY, CredentialRole.OPERATOR, CredentialRole.VIEWER):
        assert allowed({*acls(scope, role)}) <= mine, role
    assert not allowed({*acls(scope, CredentialRole.DRILL)}) <= mine
