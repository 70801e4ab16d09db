"""The compiled twin of the transcoder. Everything else that builds the package is said in pyproject.toml.

Without a C compiler the build goes on: the twin is left out, and the transcoder in plain Python does its work, slowly.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

TWIN = Extension(
    "sink.transcode._twin",
    ["sink/transcode/_twin.pyx"],
    depends=["sink/transcode/crc32c.h"],
    include_dirs=["sink/transcode"],
    extra_compile_args=["-O3"],
    optional=True,
)

setup(ext_modules=cythonize([TWIN], build_dir="build/cython"))
