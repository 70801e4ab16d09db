"""The compiled twins of the transcoder. Everything else that builds the package is said in pyproject.toml.

Without a C compiler the build goes on: the twins are left out, and plain Python does their work, slowly.
The compiler is told nothing about where and when it runs, so that the same sources give the same bytes.
The twins use the stable ABI, so that one wheel fits each Python from 3.11 on. TANDEM_PURE=1 leaves them out, for a
wheel that fits any machine.
"""

import os
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_namespace_packages, setup

#: Each of these folders is a source root, which holds its part of the package `tandem`.
_ROOTS = ("avro", "sink", "spark_jobs", "controller")
_TRANSCODE = "sink/tandem/sink/transcode"
_PURE = os.environ.get("TANDEM_PURE", "") not in {"", "0"}
# A Python without the interpreter's lock has no stable ABI yet.
_STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")


def _twin(name: str, *headers: str) -> Extension:
    return Extension(
        f"tandem.sink.transcode.{name}",
        [f"{_TRANSCODE}/{name}.pyx"],
        depends=[f"{_TRANSCODE}/{header}" for header in headers],
        include_dirs=[_TRANSCODE],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if _STABLE else [],
        py_limited_api=_STABLE,
        # No debug information, which names the folder; __FILE__, in assertions of Python's headers, without it.
        extra_compile_args=["-O3", "-g0", f"-ffile-prefix-map={Path.cwd()}=."],
    )


twins = (
    []
    if _PURE
    else cythonize(
        [_twin("_twin", "crc32c.h"), _twin("_bodies", "crc32c.h", "sha256.h")],
        build_dir="build/cython",
        include_path=["sink"],
    )
)
for twin in twins:
    twin.optional = True

packages = {name: root for root in _ROOTS for name in find_namespace_packages(root, include=["tandem.*"])}
setup(
    packages=list(packages),
    package_dir={name: f"{root}/{name.replace('.', '/')}" for name, root in packages.items()},
    ext_modules=twins,
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if twins and _STABLE else {},
)
