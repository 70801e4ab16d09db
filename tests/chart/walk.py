"""`make walk`: from the chart's values to a running pair, as a stranger with tandem, helm and the packaged chart walks.

The steps are shell commands; what they print is written to docs/walk.md. A step that fails ends the walk. The pair runs
on the servers of `tandem sandbox`, with the very configuration that the chart renders.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chart.rendering import CHART, REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "walk.md"
_STEP_S: Final = 600

_HEAD: Final = """\
# A walk: from the chart to a running pair

<!-- Made by `make walk`, which walks it; change tests/chart/walk.py, not this page. -->

What follows was typed and printed just so, in a folder with nothing but the packaged chart, with `tandem` and `helm` on
the PATH. There is no cluster: the configuration that the chart renders is given to two processes, as its two pods would
get it. On a cluster the steps from "Both ends of it" on are the same, after `kubectl exec <pod> --`
([kubernetes.md](kubernetes.md)).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A shell command under a heading; `says` comes before it. What it prints is shown, unless it is `quiet`."""

    title: str
    says: str
    command: str
    quiet: bool = False


STEPS: Final = (
    Step(
        title="A broker and a store",
        says="Where there is neither, the sandbox has both, on loopback. It prints variables for a shell.",
        command='eval "$(tandem sandbox up)"\necho "$KAFKA_BOOTSTRAP_SERVERS $AWS_ENDPOINT_URL"',
    ),
    Step(
        title="A topic",
        says="Any compacted topic does. This one gets a thousand records of a hundred keys.",
        quiet=True,
        command="""\
python - <<'EOF'
import os
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
servers = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]}
topic = NewTopic("customers", 3, 1, config={"cleanup.policy": "compact"})
admin = AdminClient(servers)
admin.create_topics([topic])["customers"].result()
producer = Producer(servers)
for number in range(1000):
    producer.produce("customers", key=f"customer-{number % 100}", value=f"order {number}")
producer.flush()
EOF""",
    ),
    Step(
        title="Values",
        says="One pair. On a cluster, credentials come from Secrets (`secretEnv`); here the shell has them.",
        quiet=True,
        command="""\
cat > values.yaml <<EOF
image: {repository: registry.example.org/tandem}
pairs:
  - name: look
    config:
      topics: {include: [customers]}
      kafka: {bootstrap.servers: "$KAFKA_BOOTSTRAP_SERVERS"}
      store: {root: s3://tandem/backup, endpoint_url: "$AWS_ENDPOINT_URL", addressing_style: path}
      flush: {interval: 2s}
      coordination: {replication_factor: 1}
EOF""",
    ),
    Step(
        title="What the chart makes of them",
        says="The objects, and out of the ConfigMap the file that both pods read.",
        command="""\
helm template acme tandem-0.2.0.tgz -f values.yaml --kube-version 1.32.0 > objects.yaml
awk '/^kind:/ {kind = $2} /^  name:/ {print kind, $2}' objects.yaml | sort
python -c 'import sys, yaml
for each in yaml.safe_load_all(sys.stdin):
    if each["kind"] == "ConfigMap":
        print(each["data"]["tandem.yaml"], end="")' < objects.yaml > tandem.yaml
cat tandem.yaml""",
    ),
    Step(
        title="Two instances",
        says="A pod's name says which instance it is, and it has the port to itself. Two processes here are told.",
        command="""\
export TANDEM_CONFIG=tandem.yaml
TANDEM_INSTANCE=a TANDEM_HTTP__LISTEN=127.0.0.1:18081 tandem run 2> a.log & A=$!
TANDEM_INSTANCE=b TANDEM_HTTP__LISTEN=127.0.0.1:18082 tandem run 2> b.log & B=$!
until tandem history -o json 2> /dev/null | grep -q '"COMPLETE"'; do sleep 1; done
until curl -sf http://127.0.0.1:18081/readyz > /dev/null; do sleep 1; done
until curl -sf http://127.0.0.1:18082/readyz > /dev/null; do sleep 1; done""",
        quiet=True,
    ),
    Step(
        title="Both ends of it",
        says="Both are ready, which is what the pods' readiness asks; one is Active.",
        command="curl -s http://127.0.0.1:18081/readyz http://127.0.0.1:18082/readyz\ntandem status",
    ),
    Step(
        title="The other one takes its turn",
        says="It reads everything again, becomes Active, and the first one clears its prefix.",
        command="tandem failover --yes --wait",
    ),
    Step(title="What happened", says="Oldest first.", command="tandem history"),
    Step(
        title="What a restore would do",
        says="A plan; nothing is touched. Without `--dry-run` it is carried out.",
        command="tandem restore --suffix .restored --dry-run",
    ),
    Step(
        title="What a monitor asks",
        says="One line and an exit code, as plugins of Nagios give them; `helm test` runs it with `--connections`.",
        command="tandem check --lag-critical 100000 --commit-age-critical 1h",
    ),
    Step(
        title="The end",
        says="Both commit what they read, and leave.",
        quiet=True,
        command="kill $A $B; wait $A $B\ntandem sandbox down",
    ),
)


def walk(folder: Path) -> list[tuple[Step, str]]:
    """Walk in `folder`; return each step with what it printed, on stdout and stderr. Fails at the first that fails."""
    walked = []
    script = folder / "script"
    outputs = [folder / f"output-{number}" for number in range(len(STEPS))]
    lines = ["set -euo pipefail"]
    for step, output in zip(STEPS, outputs, strict=True):
        lines += [f"echo '==> {step.title}' >&3", f"exec > {output} 2>&1", step.command]
    script.write_text("\n".join(lines) + "\n")
    empty = folder / "empty"
    empty.mkdir()
    binary = (REPOSITORY / ".venv" / "helm-path").read_text().strip()
    subprocess.run([binary, "package", str(CHART), "--destination", str(empty)], check=True, stdout=subprocess.DEVNULL)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TANDEM_", "AWS_", "KAFKA_"))}
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), str(Path(binary).parent), environ["PATH"]])
    process = subprocess.Popen(["bash", "-c", f"exec 3>&1; . {script}"], cwd=empty, env=environ, start_new_session=True)
    try:
        failed = process.wait(_STEP_S) != 0
    finally:
        # The instances of a walk that ended early; the sandbox's servers have a session of their own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        subprocess.run(["tandem", "sandbox", "down"], cwd=empty, env=environ, check=False, stderr=subprocess.DEVNULL)
    for step, output in zip(STEPS, outputs, strict=True):
        if failed and output.exists():
            sys.stderr.write(f"--- {step.title}\n{output.read_text()}\n")
        walked.append((step, output.read_text() if output.exists() else ""))
    if failed:
        raise SystemExit("error: a step of the walk failed, see above")
    return walked


def page(walked: list[tuple[Step, str]]) -> str:
    """Return docs/walk.md."""
    parts = [_HEAD]
    for step, output in walked:
        parts.append(f"## {step.title}\n\n{step.says}\n\n```sh\n{step.command}\n```\n")
        if not step.quiet:
            shown = re.sub(r"[ \t]+$", "", output, flags=re.MULTILINE).rstrip("\n")
            parts.append(f"```text\n{shown}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="walk-") as made:
        PAGE.write_text(page(walk(Path(made))))
