"""The compiled twin of the transcoder. Everything else that builds the package is said in pyproject.toml.

Without a C compiler the build goes on: the twin is left out, and the transcoder in plain Python does its work, slowly.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

(twin,) = cythonize(
    [
        Extension(
            "sink.transcode._twin",
            ["sink/transcode/_twin.pyx"],
            depends=["sink/transcode/crc32c.h"],
            include_dirs=["sink/transcode"],
            extra_compile_args=["-O3"],
        )
    ],
    build_dir="build/cython",
)
twin.optional = True

setup(ext_modules=[twin])
