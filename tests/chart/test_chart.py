"""The chart: rendered by helm, checked against the schemas of Kubernetes and what must hold (`make chart-test`)."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from controller.config import load

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "helm" / "tandem"
VERSIONS = ("1.29", "1.32", "1.35")
BASE: dict[str, Any] = {
    "config": {
        "pair": "orders",
        "topics": {"include": ["customers"]},
        "kafka": {"bootstrap.servers": "kafka:9092"},
        "store": {"root": "s3://bucket/prefix"},
    }
}
MATRIX: dict[str, dict[str, Any]] = {
    "plain": {},
    "hard-anti-affinity": {"antiAffinity": "hard", "priorityClassName": "high"},
    "no-anti-affinity": {"antiAffinity": "none", "podDisruptionBudget": {"enabled": False}},
    "secrets": {"secrets": [{"env": "TANDEM_KAFKA__SASL_PASSWORD", "secretName": "kafka", "key": "password"}]},
    "own-account": {"serviceAccount": {"create": False, "name": "mine"}},
    "annotated-account": {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}}},
    "retention-carried-out": {"retention": {"execute": True, "horizon": "7d", "extraArgs": ["--master", "local[2]"]}},
    "no-retention": {"retention": {"enabled": False}},
    "console-log": {"config": {"log": {"format": "console", "level": "debug"}, "flush": {"interval": "30s"}}},
    "pull-secrets": {"imagePullSecrets": [{"name": "registry"}], "image": {"repository": "acme/tandem", "tag": "9"}},
    "placed": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "backup", "operator": "Exists"}]},
    "named": {
        "fullnameOverride": "orders-backup",
        "podLabels": {"team": "data"},
        "extraEnv": [{"name": "A", "value": "b"}],
    },
}


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    out = copy.deepcopy(base)
    for key, value in more.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def helm(*words: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    binary = (REPOSITORY / ".venv" / "helm-path").read_text().strip()
    return subprocess.run(
        [binary, *words, "--values", "-"], input=yaml.safe_dump(values), capture_output=True, text=True, check=False
    )


def render(more: dict[str, Any], version: str = VERSIONS[0]) -> list[dict[str, Any]]:
    done = helm("template", "orders", str(CHART), "--kube-version", f"{version}.0", values=merged(BASE, more))
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def one(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [one(documents, "StatefulSet")["spec"]["template"]["spec"]]
    found += [
        document["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        for document in documents
        if document["kind"] == "CronJob"
    ]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MATRIX)
def test_every_object_fits_the_schemas_of_kubernetes(name: str, version: str) -> None:
    """No unknown field, no wrong type, in any combination of values and on each version."""
    for document in render(MATRIX[name], version):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("name", MATRIX)
def test_pods_are_restricted(name: str) -> None:
    """What the Pod Security Standard "restricted" asks for, in every container, and a read-only root besides."""
    for pod in pods(render(MATRIX[name])):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", MATRIX)
def test_the_rendered_configuration_is_one(name: str, tmp_path: Path) -> None:
    """The program itself accepts the file, and the pod's name says which instance it is."""
    path = tmp_path / "tandem.yaml"
    path.write_text(one(render(MATRIX[name]), "ConfigMap")["data"]["tandem.yaml"])
    for ordinal, instance in enumerate("ab"):
        config = load(path, {}, hostname=lambda ordinal=ordinal: f"orders-tandem-{ordinal}")
        assert (config.pair, config.instance, config.http.listen) == ("orders", instance, "0.0.0.0:8080")
    expected = MATRIX[name].get("config", {}).get("log", {}).get("format", "json")
    assert config.log.format == expected


def test_a_pair_is_two_pods_that_start_together() -> None:
    """Never one, never three; a change of configuration restarts them."""
    first, second = (one(render(more), "StatefulSet") for more in ({}, {"config": {"flush": {"interval": "30s"}}}))
    assert first["spec"]["replicas"] == 2
    assert first["spec"]["podManagementPolicy"] == "Parallel"
    sums = [each["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for each in (first, second)]
    assert sums[0] != sums[1]


def test_secrets_come_from_secrets() -> None:
    """A secret is referred to by both kinds of pods, and never in the configuration file."""
    documents = render(MATRIX["secrets"])
    for pod in pods(documents):
        (variable,) = [v for v in pod["containers"][0]["env"] if v["name"] == "TANDEM_KAFKA__SASL_PASSWORD"]
        assert variable["valueFrom"]["secretKeyRef"] == {"name": "kafka", "key": "password"}
    assert "password" not in one(documents, "ConfigMap")["data"]["tandem.yaml"]


def test_retention_only_plans_unless_told_otherwise() -> None:
    """The default job deletes nothing."""
    arguments = {
        name: pods(render(MATRIX[name]))[1]["containers"][0]["args"] for name in ("plain", "retention-carried-out")
    }
    assert arguments["plain"] == ["retention"]
    assert arguments["retention-carried-out"] == [
        "retention",
        "--execute",
        "--horizon",
        "7d",
        "--master",
        "local[2]",
    ]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"config": {"pair": ""}}, "/config/pair"),
        ({"config": {"store": {"root": "/tmp/x"}}}, "/config/store/root"),
        ({"config": {"store": {"secret_access_key": "x"}}}, "/config/store/secret_access_key"),
        ({"config": {"instance": "a"}}, "/config/instance"),
        ({"retention": {"shedule": "x"}}, "shedule"),
        ({"antiAffinity": "strong"}, "/antiAffinity"),
        ({"secrets": [{"env": "PASSWORD", "secretName": "a", "key": "b"}]}, "/secrets/0/env"),
    ],
)
def test_wrong_values_are_refused_by_name(more: dict[str, Any], said: str) -> None:
    """Helm names the place before anything is installed."""
    done = helm("template", "x", str(CHART), "--kube-version", "1.31.0", values=merged(BASE, more))
    assert done.returncode != 0
    assert said in done.stderr


def test_lint() -> None:
    """Helm itself finds nothing."""
    done = helm("lint", str(CHART), "--strict", "--kube-version", "1.31.0", values=BASE)
    assert done.returncode == 0, done.stdout
