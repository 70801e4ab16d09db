# syntax=docker/dockerfile:1
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
# The compiler is for the transcoder, which is fifty times slower without it.
RUN apt-get update \
    && apt-get install --no-install-recommends -y gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir build==1.2.2
COPY pyproject.toml setup.py README.md LICENSE ./
COPY avro avro
COPY controller controller
COPY sink sink
COPY spark_jobs spark_jobs
RUN python -m build --wheel --outdir /wheels

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="tandem" \
      org.opencontainers.image.description="Active/passive backup of compacted Kafka topics to S3" \
      org.opencontainers.image.licenses="Apache-2.0"
# The Java runtime is for the Spark jobs: restore, verify, retention.
RUN apt-get update \
    && apt-get install --no-install-recommends -y openjdk-17-jre-headless tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin tandem
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -rf /wheels && python -c "import sink.transcode._twin, sink.transcode._bodies"
USER 10001:10001
WORKDIR /tmp
ENV PYTHONUNBUFFERED=1 HOME=/tmp
ENTRYPOINT ["tini", "--", "tandem"]
CMD ["--help"]
