"""The compiled twins of the transcoder. Everything else that builds the package is said in pyproject.toml.

Without a C compiler the build goes on: the twins are left out, and plain Python does their work, slowly.
The compiler is told nothing about where and when it runs, so that the same sources give the same bytes.
"""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup


def _twin(name: str, *headers: str) -> Extension:
    return Extension(
        f"sink.transcode.{name}",
        [f"sink/transcode/{name}.pyx"],
        depends=[f"sink/transcode/{header}" for header in headers],
        include_dirs=["sink/transcode"],
        # No debug information, which names the folder; __FILE__, in assertions of Python's headers, without it.
        extra_compile_args=["-O3", "-g0", f"-ffile-prefix-map={Path.cwd()}=."],
    )


twins = cythonize(
    [_twin("_twin", "crc32c.h"), _twin("_bodies", "crc32c.h", "sha256.h")],
    build_dir="build/cython",
)
for twin in twins:
    twin.optional = True

setup(ext_modules=twins)
