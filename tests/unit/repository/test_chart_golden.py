"""The chart without helm: what helm made of it is kept in tests/chart/golden, and its schema follows from the model."""

from __future__ import annotations

import json
import re
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from chart import walk
from chart.matrix import CONFIG, KEPT, MATRIX, single
from chart.rendering import CHART, GOLDEN, REPOSITORY, Object, objects, of_kind, pods
from chart.restricted import violations

from tandem.backup_avro.errors import ConfigError
from tandem.controller.config import chart_schema, load
from tandem.controller.config.model import Config


def golden(name: str) -> list[Object]:
    """Return the objects of a kept rendering."""
    return objects((GOLDEN / f"{name}.yaml").read_text())


def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_configuration_loads(name: str, tmp_path: Path) -> None:
    """The program accepts what the chart writes, as instance a and as instance b."""
    config_maps = of_kind(golden(name), "ConfigMap")
    assert config_maps
    for config_map in config_maps:
        path = tmp_path / "tandem.yaml"
        path.write_text(config_map["data"]["tandem.yaml"])
        base = config_map["metadata"]["name"]
        found = [load(path, {}, hostname=partial("{}-{}".format, base, at)).instance for at in (0, 1)]
        assert found == ["a", "b"]


@pytest.mark.parametrize("name", KEPT)
def test_kept_pods_are_restricted(name: str) -> None:
    """All of them satisfy the Pod Security Standard "restricted"."""
    assert {place: found for place, pod in pods(golden(name)) if (found := violations(pod))} == {}


def test_the_check_of_pods_finds_what_is_not_restricted() -> None:
    """Each control of the profile is noticed when it is broken, in a pod that breaks nothing else."""
    (_, pod), *_ = pods(golden("plain"))
    container = pod["containers"][0]
    broken: list[tuple[Object, Object, str]] = [
        ({"hostNetwork": True}, {}, "hostNetwork"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, {}, "hostPath"),
        ({"securityContext": {**pod["securityContext"], "runAsUser": 0}}, {}, "runAsUser 0"),
        ({"securityContext": {}}, {}, "runAsNonRoot is not true"),
        ({"securityContext": {"runAsNonRoot": True}}, {}, "no seccompProfile"),
        ({"securityContext": {**pod["securityContext"], "sysctls": [{"name": "kernel.msgmax"}]}}, {}, "sysctl"),
        ({}, {"ports": [{"containerPort": 1, "hostPort": 1}]}, "hostPort"),
        ({}, {"readinessProbe": {"httpGet": {"host": "example.org"}}}, "another host"),
        *(
            ({}, {"securityContext": {**container["securityContext"], **change}}, said)
            for change, said in (
                ({"privileged": True}, "privileged"),
                ({"allowPrivilegeEscalation": True}, "allowPrivilegeEscalation"),
                ({"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}, "capabilities"),
                ({"capabilities": {}}, "capabilities"),
                ({"procMount": "Unmasked"}, "procMount"),
                ({"seccompProfile": {"type": "Unconfined"}}, "seccompProfile"),
                ({"appArmorProfile": {"type": "Unconfined"}}, "appArmorProfile"),
                ({"seLinuxOptions": {"type": "spc_t"}}, "seLinuxOptions"),
                ({"windowsOptions": {"hostProcess": True}}, "hostProcess"),
                ({"readOnlyRootFilesystem": False}, "read-only"),
            )
        ),
    ]
    assert violations(pod) == []
    for of_pod, of_container, said in broken:
        found = violations({**pod, **of_pod, "containers": [{**container, **of_container}]})
        assert any(said in line for line in found), said


def test_the_schema_of_values_follows_from_the_model() -> None:
    """A key that was added to the configuration has a place in the chart; `make chart-schema` writes it."""
    text = (CHART / "values.schema.json").read_text()
    assert chart_schema.with_definitions(text) == text


def test_the_chart_s_own_values_fit_their_schema() -> None:
    """But for the pairs, of which there are none."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert [error.json_path for error in validator().iter_errors(values)] == ["$.pairs"]


@pytest.mark.parametrize("name", MATRIX)
def test_values_of_the_matrix_fit_the_schema(name: str) -> None:
    """By another validator than helm's own."""
    validator().validate(MATRIX[name])


def _everything() -> dict[str, Any]:
    """Return a configuration with each key that has a default written out, as `tandem config show` has it."""
    config = Config.model_validate({"pair": "x", **CONFIG}).model_dump(mode="json", exclude_none=True)
    del config["pair"]
    return config


def test_every_default_of_the_configuration_fits_the_schema() -> None:
    """What `tandem config show` prints may be copied into values."""
    validator().validate(single(config=_everything()))


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"pair": "x"}, "$.pairs[0].config.pair"),
        ({"http": {"listen": "0.0.0.0:1"}}, "$.pairs[0].config.http.listen"),
        ({"store": {"session_token": "x"}}, "$.pairs[0].config.store.session_token"),
        ({"kafka": {"ssl.key.pem": "x"}}, "$.pairs[0].config.kafka['ssl.key.pem']"),
        ({"kafka": {"sasl.oauthbearer.client.secret": "x"}}, "['sasl.oauthbearer.client.secret']"),
        ({"grace": {"rewrite": 5}}, "$.pairs[0].config.grace.rewrite"),
    ],
)
def test_what_has_no_place_in_values_is_refused(config: Object, place: str) -> None:
    """By the schema, which names the place."""
    (error,) = validator().iter_errors(single(config=config))
    assert error.json_path.endswith(place.removeprefix("$"))


def test_files_of_secrets_have_a_place_in_values() -> None:
    """Their names are no secrets."""
    files = {"kafka": {"sasl.password.file": "/run/secrets/tandem/kafka/password", "ssl.key.pem.file": "/x"}}
    validator().validate(single(config=files))
    validator().validate(single(config={"store": {"secret_access_key_file": "/x"}}))


def test_a_schema_without_definitions_is_refused() -> None:
    """Whoever names another file is told so."""
    for text in ("no json", "[]", "{}"):
        with pytest.raises(ConfigError):
            chart_schema.with_definitions(text)


def _examples() -> list[Object]:
    """Return the values that the pages show."""
    pages = (CHART / "README.md", REPOSITORY / "docs" / "kubernetes.md")
    blocks = [
        textwrap.dedent(block)
        for page in pages
        for block in re.findall(r"^ *```yaml\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    return [yaml.safe_load(block) for block in blocks]


def test_the_values_that_pages_show_fit_the_schema() -> None:
    """Whoever copies them gets what they say. Some show only what pairs share."""
    examples = _examples()
    assert len(examples) >= 7
    for values in examples:
        validator().validate({"pairs": [{"name": "x"}], **values})


def test_the_page_of_the_walk_has_its_steps() -> None:
    """What docs/walk.md shows was walked; `make walk` walks it again after a change."""
    text = walk.PAGE.read_text()
    for step in walk.STEPS:
        assert f"## {step.title}\n\n{step.says}\n\n```sh\n{step.command}\n```\n" in text, step.title
