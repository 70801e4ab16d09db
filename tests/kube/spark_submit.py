"""Submits a SparkApplication as the Spark operator does: pod templates in files, the rest as --conf of spark-submit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyspark
import yaml

from kube.cluster_access import Cluster
from kube.scene import ADDRESS, NAMESPACE, PAIR


def submit(cluster: Cluster, spec: dict[str, Any]) -> str:
    """Run the application to its end and return what Spark printed. Raises AssertionError if it failed."""
    home = Path(pyspark.__file__).parent
    with tempfile.TemporaryDirectory(prefix="tandem-spark-") as made:
        settings = _settings(spec, Path(made))
        words = [
            str(home / "bin" / "spark-submit"),
            "--master",
            f"k8s://https://{ADDRESS}:6443",
            "--deploy-mode",
            "cluster",
        ]
        words += ["--name", f"{PAIR}-verify"]
        for key, value in settings.items():
            words += ["--conf", f"{key}={value}"]
        environ = {**cluster.environ, "SPARK_HOME": str(home)}
        cluster.environ, before = environ, cluster.environ
        try:
            done = cluster.run(*words, spec["mainApplicationFile"], *spec["arguments"], timeout_s=420, check=False)
        finally:
            cluster.environ = before
    printed = done.stdout + done.stderr
    assert done.returncode == 0, f"spark-submit ended with {done.returncode}: {printed[-600:]}"
    assert "exit code: 0" in printed, printed[-600:]
    return printed


def _settings(spec: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return Spark's settings for the fields of a SparkApplication, with its pod templates in `folder`."""
    settings = {
        "spark.kubernetes.namespace": NAMESPACE,
        "spark.kubernetes.container.image": spec["image"],
        "spark.kubernetes.container.image.pullPolicy": spec["imagePullPolicy"],
        "spark.executor.instances": spec["executor"]["instances"],
        "spark.executor.memoryOverhead": spec["executor"]["memoryOverhead"],
        "spark.kubernetes.submission.waitAppCompletion": "true",
    }
    for kind in ("driver", "executor"):
        pod = {"apiVersion": "v1", "kind": "Pod", **spec[kind]["template"]}
        path = folder / f"{kind}.yaml"
        path.write_text(yaml.safe_dump(pod), encoding="utf-8")
        settings |= {
            f"spark.kubernetes.{kind}.podTemplateFile": str(path),
            f"spark.kubernetes.{kind}.podTemplateContainerName": f"spark-kubernetes-{kind}",
            f"spark.kubernetes.authenticate.{kind}.serviceAccountName": spec[kind]["serviceAccount"],
            f"spark.{kind}.cores": spec[kind]["cores"],
            f"spark.{kind}.memory": spec[kind]["memory"],
            f"spark.kubernetes.{kind}.request.cores": "200m",
        }
    return {**settings, **spec.get("sparkConf", {})}
