"""kubectl, helm and power switches of the cluster that cluster/up.sh started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
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

    def run(self, *words: str, stdin: str = "", timeout_s: float = 600, check: bool = True) -> Done:
        """Run a command. Raises AssertionError with its last lines if it fails and `check` is set."""
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s, env=self.environ
        )
        if check and done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()[-6:]
            raise AssertionError(f"{' '.join(words[:8])} ended with {done.returncode}: {' / '.join(lines)}")
        return done

    def kubectl(self, *words: str, stdin: str = "", timeout_s: float = 600, check: bool = True) -> Done:
        """Run kubectl in the namespace of the release."""
        return self.run("kubectl", "-n", NAMESPACE, *words, stdin=stdin, timeout_s=timeout_s, check=check)

    def get(self, *words: str) -> Any:
        """Return what `kubectl get … -o json` says."""
        return json.loads(self.kubectl("get", *words, "-o", "json").stdout)

    def names(self, kinds: str) -> set[str]:
        """Return kind/name of the objects of these kinds in the namespace."""
        return set(self.kubectl("get", kinds, "-o", "name").stdout.split())

    def apply(self, values: Values, *, verb: str = "upgrade", check: bool = True) -> Done:
        """Install or upgrade the release."""
        words = ("helm", verb, RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", "-")
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
            self.until(f"{PAIR}-{ordinal} is ready", lambda ordinal=ordinal: self.is_ready(ordinal), timeout_s)

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
        self.until(f"{node} is ready", lambda: self._node_ready(node), 120)

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

    def _signal_servers(self, number: signal.Signals) -> None:
        os.kill(int((self.cache / "servers" / "ready").read_text()), number)

    def _node_ready(self, node: str) -> bool:
        conditions = {each["type"]: each["status"] for each in self.get("node", node)["status"]["conditions"]}
        return conditions.get("Ready") == "True"
