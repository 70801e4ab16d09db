"""The broker of the benchmarks: the sandbox's, with a full compiler and settings that let it serve."""

from __future__ import annotations

import re
import resource
import subprocess
from pathlib import Path

from bench.measured import Run
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import REGION, S3Server

_SETTINGS = {
    "log.segment.bytes": str(256 << 20),
    "log.cleaner.enable": "false",
    "socket.send.buffer.bytes": str(1 << 20),
    "log.roll.ms": str(7 * 86_400_000),
}
_JVM = ("-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError")


class BenchKafka(KafkaServer):
    """A broker that lives for minutes at full load: it is worth compiling well."""

    def __init__(self, folder: Path, *, heap_mb: int = 512) -> None:
        """See KafkaServer."""
        super().__init__(folder, overrides=_SETTINGS)
        self._heap = (f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m")

    def _command(self) -> list[str]:
        return [*self._java(*self._heap, *_JVM), "kafka.Kafka", "server.properties"]

    def perform(self, topic: str, *, records: int, size: int) -> Run:
        """Fill a topic with Kafka's own `ProducerPerformance`: random values of a size, without keys or compression.

        `seconds` are its own, without the start of its JVM, which its processor time has in it.
        """
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = subprocess.run(
            [
                *self._java("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC"),
                *("org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records)),
                *("--record-size", str(size), "--throughput", "-1", "--producer-props", "acks=all"),
                *("batch.size=1000000", "linger.ms=20", f"bootstrap.servers={self.bootstrap}"),
            ],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        rates = re.findall(rf"^{records} records sent, ([0-9.]+) records/sec", ended.stdout, re.MULTILINE)
        if ended.returncode or not rates:
            raise RuntimeError(f"ProducerPerformance failed:\n{ended.stdout}{ended.stderr}"[-4000:])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Run(
            records=records,
            bytes=records * size,
            seconds=records / float(rates[-1]),
            cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            peak_mb=0.0,
        )


def store_section(s3: S3Server, folder: str) -> dict[str, str]:
    """Return the section `store` of a configuration for a folder of the server's bucket."""
    return {
        "root": f"s3://{s3.bucket}/{folder}",
        "endpoint_url": s3.endpoint_url,
        "addressing_style": "path",
        "region": REGION,
        "access_key_id": s3.key.access_key,
        "secret_access_key": s3.key.secret_key,
    }
