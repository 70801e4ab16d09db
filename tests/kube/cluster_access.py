"""kubectl, helm and power switches of the cluster that cluster/up.sh started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from kube.scene import NAMESPACE, PAIR, RELEASE, Values

SOURCE: Final = Path(__file__).parents[2]
CHART: Final = SOURCE / "helm" / "tandem"
SCRIPTS: Final = Path(__file__).parent / "cluster"
#: Names of the two instances by the ordinal of their pods.
INSTANCES: Final = ("a", "b")
Done = subprocess.CompletedProcess[str]


def cache_folder() -> Path:
    """Return the folder of what is built and of the running cluster, as cluster/env.sh has it."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TANDEM_KUBE_CACHE") or base / "tandem" / "kube")


class Cluster:
    """Commands of a user of the cluster. Runs in the network namespace of the control plane."""

    def __init__(self) -> None:
        self.cache = cache_folder()
        config = self.cache / "pki" / "admin.conf"
        path = os.pathsep.join([str(self.cache / "bin"), os.environ["PATH"]])
        self.environ = {**os.environ, "KUBECONFIG": str(config), "PATH": path}
        #: Where a user of the page types: it has my-values.yaml, ca.crt and the source's folder helm.
        self.desk = self.cache / "servers" / "desk"

    def run(
        self, *words: str, stdin: str = "", timeout_s: float = 600, check: bool = True, folder: Path | None = None
    ) -> Done:
        """Run a command. Raises AssertionError with its last lines if it fails and `check` is set."""
        done = subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env=self.environ,
            cwd=folder,
        )
        if check and done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()[-6:]
            raise AssertionError(f"{' '.join(words[:8])} ended with {done.returncode}: {' / '.join(lines)}")
        return done

    def kubectl(self, *words: str, stdin: str = "", timeout_s: float = 600, check: bool = True) -> Done:
        """Run kubectl in the namespace of the release."""
        return self.run("kubectl", "-n", NAMESPACE, *words, stdin=stdin, timeout_s=timeout_s, check=check)

    def lay_desk(self, values: Values) -> None:
        """Make the folder in which the commands of the page are typed."""
        self.desk.mkdir(exist_ok=True)
        for name, target in (("helm", SOURCE / "helm"), ("ca.crt", self.cache / "pki" / "ca.crt")):
            (self.desk / name).unlink(missing_ok=True)
            (self.desk / name).symlink_to(target)
        (self.desk / "my-values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")

    def type(self, commands: str, *, ordinal: int = 0, check: bool = True) -> Done:
        """Run commands of the page in a shell; `…` is the pod of `ordinal`. With `check` the first failure ends it."""
        commands = commands.replace("…", f"-n {NAMESPACE} {PAIR}-{ordinal}")
        return self.run("bash", "-euc" if check else "-uc", commands, check=check, folder=self.desk)

    def get(self, *words: str) -> Any:
        """Return what `kubectl get … -o json` says."""
        return json.loads(self.kubectl("get", *words, "-o", "json").stdout)

    def names(self, kinds: str) -> set[str]:
        """Return kind/name of the objects of these kinds in the namespace."""
        return set(self.kubectl("get", kinds, "-o", "name").stdout.split())

    def apply(self, values: Values, *, check: bool = True) -> Done:
        """Upgrade the release."""
        words = ("helm", "upgrade", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", "-")
        return self.run(*words, stdin=yaml.safe_dump(values), check=check)

    def tandem(self, ordinal: int, *words: str, check: bool = True, timeout_s: float = 600) -> Done:
        """Run a command of tandem in the pod of an instance."""
        return self.kubectl("exec", f"{PAIR}-{ordinal}", "--", "tandem", *words, check=check, timeout_s=timeout_s)

    def status(self, ordinal: int = 0) -> Any:
        """Return the status document, whatever its exit code; None while the pod does not answer."""
        done = self.tandem(ordinal, "status", "-o", "json", check=False)
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError:
            return None

    def active(self, ordinal: int = 0) -> int:
        """Return the ordinal of the living Active's pod."""
        for each in (self.status(ordinal) or {"instances": []})["instances"]:
            if each["role"] == "Active" and each["alive"]:
                return INSTANCES.index(each["instance"])
        raise AssertionError("no instance that is alive is Active")

    def ready(self, *ordinals: int, timeout_s: float = 180) -> None:
        """Wait until these pods of the pair are ready."""
        for ordinal in ordinals or (0, 1):
            self.until(f"{PAIR}-{ordinal} is ready", partial(self.is_ready, ordinal), timeout_s)

    def healthy(self, ordinal: int = 0, timeout_s: float = 240) -> Any:
        """Wait until one instance is Active, the other Passive, and nothing is wrong; return the status."""
        held: list[Any] = []

        def well() -> bool:
            held[:] = [self.status(ordinal)]
            roles = sorted(str(each["role"]) for each in held[0]["instances"]) if held[0] else []
            return bool(held[0]) and held[0]["healthy"] and roles == ["Active", "Passive"]

        try:
            self.until("the pair is healthy", well, timeout_s)
        except AssertionError as error:
            problems = [each["message"] for each in (held[0] or {}).get("problems", ())] if held else []
            raise AssertionError(f"{error}: {problems}") from None
        return held[0]

    def pod(self, ordinal: int) -> Any:
        """Return the pod's object."""
        return self.get("pod", f"{PAIR}-{ordinal}")

    def job_from(self, cron: str, name: str, *args: str) -> None:
        """Make a Job from a CronJob of the pair; `args` are put in place of its own, but for Spark's master."""
        words = ("create", "job", f"--from=cronjob/{PAIR}-{cron}", name, "--dry-run=client", "-o", "json")
        job = json.loads(self.kubectl(*words).stdout)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        command, *own = container["args"]
        if args:
            container["args"] = [command, *args, *own[own.index("--master") :]]
        self.kubectl("apply", "-f", "-", stdin=json.dumps(job))

    def job_ended(self, name: str, timeout_s: float = 420) -> str:
        """Wait for the end of a Job and return its log. Raises AssertionError if it failed."""

        def ended() -> bool:
            status = self.get("job", name).get("status", {})
            return any(
                each["type"] in {"Complete", "Failed"} and each["status"] == "True"
                for each in status.get("conditions", ())
            )

        self.until(f"job {name} ends", ended, timeout_s)
        log = self.kubectl("logs", f"job/{name}", check=False).stdout
        if not self.get("job", name)["status"].get("succeeded"):
            raise AssertionError(f"job {name} failed: {' / '.join(log.strip().splitlines()[-4:])}")
        return log

    def until(self, what: str, holds: Callable[[], bool], timeout_s: float = 180) -> float:
        """Wait until something holds; return the seconds. What is not there yet counts as not."""
        began = time.monotonic()
        while True:
            try:
                if holds():
                    return time.monotonic() - began
            except (AssertionError, KeyError, TypeError):
                pass
            if time.monotonic() - began > timeout_s:
                raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
            time.sleep(1)

    def cut_power(self, node: str) -> None:
        """End everything on a node at once."""
        os.kill(int((self.cache / "run" / f"{node}.pid").read_text()), signal.SIGKILL)

    def restore_power(self, node: str) -> None:
        """Start a node again, with what it has on its disk."""
        self.run(str(SCRIPTS / "node.sh"), node)
        self.until(f"{node} is ready", lambda: self.node_ready(node), 120)

    def cut_network(self, node: str) -> None:
        """Take a node's only network away. What runs on it goes on."""
        self.run("ip", "link", "set", f"v-{node}", "down")

    def restore_network(self, node: str) -> None:
        """Give a node its network again."""
        self.run("ip", "link", "set", f"v-{node}", "up")
        self.until(f"{node} is ready", lambda: self.node_ready(node), 120)

    def container(self, ordinal: int) -> str:
        """Return the id of the container of an instance; a container that was started again has another one."""
        status = self.pod(ordinal)["status"]["containerStatuses"][0]
        return str(status["containerID"]).rpartition("/")[2]

    def processes(self, node: str, container: str) -> int:
        """Return how many processes run in a container, asked of this machine and not of the API server."""
        try:
            folders = list(Path("/sys/fs/cgroup/memory", f"tandem-{node}").rglob(container))
            return sum(len((folder / "cgroup.procs").read_text().split()) for folder in folders)
        except OSError as error:  # a group that went meanwhile
            raise AssertionError(str(error)) from None

    def create_operator_kinds(self) -> None:
        """Make the Spark operator's custom resource definitions, where they are not there."""
        folder = next(self.cache.glob("spark-operator-*"))
        for definition in sorted(folder.glob("*.yaml")):
            self.kubectl("create", "-f", str(definition), check=False)
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")

    def replace_pod(self, ordinal: int) -> None:
        """Delete the pod of an instance and wait until the next one is ready."""
        old = self.pod(ordinal)["metadata"]["uid"]
        self.kubectl("delete", "pod", f"{PAIR}-{ordinal}")
        self.until("a new pod", lambda: self.pod(ordinal)["metadata"]["uid"] != old)
        self.ready(ordinal)

    def create_volume(self, name: str) -> None:
        """Make a volume in a folder of this machine, which both nodes see, for the claim of an instance."""
        folder = self.cache / "servers" / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, 10001, 10001)
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "8Mi"},
                "accessModes": ["ReadWriteOnce"],
                "claimRef": {"namespace": NAMESPACE, "name": f"state-{name}"},
                "hostPath": {"path": str(folder), "type": "Directory"},
            },
        }
        self.kubectl("apply", "-f", "-", stdin=json.dumps(volume))

    def stop_store(self) -> None:
        """Let the S3 server stand still: connections stay, and nothing answers."""
        self._signal_servers(signal.SIGUSR1)

    def resume_store(self) -> None:
        """Let the S3 server go on."""
        self._signal_servers(signal.SIGUSR2)

    def is_ready(self, ordinal: int) -> bool:
        """Return whether the pod of an instance is ready, and nobody deletes it."""
        pod = self.pod(ordinal)
        conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
        return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]

    def node_ready(self, node: str) -> bool:
        """Return whether the API server counts a node as ready; it learns of a loss after some fifty seconds."""
        conditions = {each["type"]: each["status"] for each in self.get("node", node)["status"]["conditions"]}
        return conditions.get("Ready") == "True"

    def _signal_servers(self, number: signal.Signals) -> None:
        os.kill(int((self.cache / "servers" / "ready").read_text()), number)
