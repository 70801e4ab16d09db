# syntax=docker/dockerfile:1
# docs/kubernetes.md, "The image", says how to build it, how to take a newer base and what `make image-dry-run` does without an engine.
# 3.11.16, all platforms, of 2026-09-19 by https://github.com/docker-library/repo-info.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
# Without spark in it: an image for instances alone, without Spark and Java.
ARG EXTRAS=spark,msk,cloud

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
# The compiler is for the transcoder, which is several times slower without it. Debian's archive keeps no old versions of a
# package, so none is pinned: the base's digest says which release it is.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends -y gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY requirements requirements
# Every file is held against its hash. PySpark, which has no wheel, and Tandem are built with what build.lock names.
RUN python -m venv /build \
    && /build/bin/pip install --no-cache-dir --require-hashes --no-deps --requirement requirements/build.lock \
    && /build/bin/pip wheel --no-cache-dir --require-hashes --no-deps --no-build-isolation --wheel-dir /wheels \
        --requirement requirements/runtime.lock
COPY pyproject.toml setup.py README.md LICENSE ./
COPY avro avro
COPY controller controller
COPY sink sink
COPY spark_jobs spark_jobs
# The time of the files in the wheel, in seconds since 1970.
ARG SOURCE_DATE_EPOCH=315532800
RUN /build/bin/python -m build --no-isolation --wheel --outdir /wheels

FROM ${PYTHON_IMAGE} AS environment
ARG EXTRAS
COPY --from=wheel /wheels /wheels
RUN python -m venv /opt/tandem/venv \
    && /opt/tandem/venv/bin/pip install --no-cache-dir --no-index --find-links /wheels "tandem-kafka-backup[${EXTRAS}]" \
    && /opt/tandem/venv/bin/pip check \
    && /opt/tandem/venv/bin/python -c "import tandem.sink.transcode._twin, tandem.sink.transcode._bodies" \
    && /opt/tandem/venv/bin/pip uninstall --yes setuptools pip
# What is in it, as CycloneDX: /opt/tandem/sbom.cdx.json.
WORKDIR /src
COPY pyproject.toml ./
COPY requirements requirements
COPY supply_chain supply_chain
# No argument at all where ${part} is empty.
# hadolint ignore=SC2086
RUN python -m venv /sbom \
    && /sbom/bin/pip install --no-cache-dir --require-hashes --no-deps --requirement requirements/sbom.lock \
    && case ",${EXTRAS}," in *,spark,*) part= ;; *) part=--without-spark ;; esac \
    && /sbom/bin/python -m supply_chain.sbom ${part} --python /opt/tandem/venv/bin/python --output /opt/tandem/sbom.cdx.json
COPY image/main.py image/entrypoint.sh /opt/tandem/
RUN chmod 0755 /opt/tandem/entrypoint.sh

FROM ${PYTHON_IMAGE}
ARG EXTRAS
ARG VERSION=0.2.0
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="tandem" \
      org.opencontainers.image.description="Active/passive backup of compacted Kafka topics to S3, GCS or Azure Blob Storage" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
# The Java runtime is for the Spark jobs: restore, verify, retention. Versions as above.
# hadolint ignore=DL3008
RUN case ",${EXTRAS}," in *,spark,*) java=openjdk-17-jre-headless ;; *) java= ;; esac \
    && apt-get update \
    && apt-get install --no-install-recommends -y ${java} procps tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tandem
COPY --from=environment /opt/tandem /opt/tandem
# A session starts in about 60 % of the time with an archive of Spark's classes, 120 MB, which the root file system keeps.
ENV TANDEM_CLASS_ARCHIVE=/opt/tandem/classes
RUN mkdir /opt/tandem/classes \
    && case ",${EXTRAS}," in *,spark,*) \
        /opt/tandem/venv/bin/python -m tandem.spark_jobs.spark.spark_classes || echo "no archive: Spark starts slowly" ;; \
    esac \
    && chmod -R a+rX /opt/tandem/classes
ENV PATH=/opt/tandem/venv/bin:$PATH \
    PYSPARK_PYTHON=/opt/tandem/venv/bin/python \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
# The number, not the name: Kubernetes can only tell of a number that it is not root's.
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["tini", "--", "/opt/tandem/entrypoint.sh"]
CMD ["--help"]
