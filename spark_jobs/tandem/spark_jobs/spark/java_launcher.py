"""Start Spark's JVM without the incubator module that Spark's launcher adds, and of which the JVM warns on stderr.

Spark always adds `--add-modules=jdk.incubator.vector`, for the linear algebra of MLlib, which nothing here uses. No
option of Spark or of the JVM takes it back, and the JVM prints its warning before any logging is set up.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_MODULE: Final = "--add-modules=jdk.incubator.vector"
_HOME: Final = "JAVA_HOME"
#: A `java` that drops the option. Spark's launcher runs in it first, and takes the JVM's path from JAVA_HOME; the JVM
#: itself, and what it starts, find the user's own JAVA_HOME.
_SCRIPT: Final = """\
#!/bin/sh
for option do
  shift
  if [ "$option" = {module} ]; then {home}; else set -- "$@" "$option"; fi
done
exec {java} "$@"
"""


@contextmanager
def without_incubator_modules() -> Iterator[None]:
    """Let a JVM that Spark's launcher starts in the block have no incubator module.

    Where no script can be run from the folder for temporary files, the block runs unchanged: the warning is printed.
    """
    before = os.environ.get(_HOME)
    java = f"{before}/bin/java" if before else shutil.which("java")
    if java is None or os.name != "posix":
        yield
        return
    with tempfile.TemporaryDirectory(prefix="tandem-java-") as folder:
        script = Path(folder) / "bin" / "java"
        script.parent.mkdir()
        home = f"export {_HOME}={shlex.quote(before)}" if before else f"unset {_HOME}"
        script.write_text(_SCRIPT.format(home=home, module=_MODULE, java=shlex.quote(java)), encoding="utf-8")
        script.chmod(0o700)
        if not os.access(script, os.X_OK):  # mounted noexec
            yield
            return
        with environment_variable(_HOME, folder):
            yield


@contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """Set a variable of this process's environment in the block; afterwards it is as it was."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
