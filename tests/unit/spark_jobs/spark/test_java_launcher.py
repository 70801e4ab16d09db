"""The `java` that Spark's launcher is given: all options but the incubator module, and the user's own JAVA_HOME."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tandem.spark_jobs.spark.java_launcher import without_incubator_modules

_JAVA = """#!/bin/sh
printf '%s|' "$JAVA_HOME" "$@"
"""


@pytest.mark.parametrize("given", [True, False])
def test_only_the_incubator_module_is_dropped(given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options keep their order and their spaces; the environment is as before, for the JVM and afterwards."""
    home = tmp_path / "a home"
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_JAVA)
    java.chmod(0o700)
    monkeypatch.setenv("PATH", f"{java.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", str(home)) if given else monkeypatch.delenv("JAVA_HOME", raising=False)
    with without_incubator_modules():
        shim = os.environ["JAVA_HOME"]
        options = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "Main", ""]
        jvm = subprocess.run([f"{shim}/bin/java", *options], capture_output=True, text=True, check=True).stdout
        launcher = subprocess.run([f"{shim}/bin/java", "Main"], capture_output=True, text=True, check=True).stdout
    assert jvm == f"{home if given else ''}|-Xmx1g|-Da=b c|Main||"
    assert launcher == f"{shim}|Main|"
    assert os.environ.get("JAVA_HOME") == (str(home) if given else None)
    assert not Path(shim).exists()


def test_a_real_jvm_does_not_warn() -> None:
    """The option that Spark's launcher adds makes it warn on stderr; behind the launcher it starts without a word."""
    java = shutil.which("java")
    assert java is not None, "Spark needs Java"
    command = ["--add-modules=jdk.incubator.vector", "-Xshare:auto", "--version"]
    plain = subprocess.run([java, *command], capture_output=True, text=True, check=True)
    assert "WARNING: Using incubator modules" in plain.stdout + plain.stderr
    with without_incubator_modules():
        shim = os.environ["JAVA_HOME"]
        quiet = subprocess.run([f"{shim}/bin/java", *command], capture_output=True, text=True, check=True)
    assert (quiet.stderr, "WARNING" in quiet.stdout) == ("", False)
