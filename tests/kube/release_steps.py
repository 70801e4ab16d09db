"""Steps about the release: upgrades, wrong values, removal."""

from __future__ import annotations

import re
from typing import Final

from kube.cluster_access import Cluster
from kube.guide import guide
from kube.scene import NAMESPACE, PAIR, RELEASE, Values, over
from kube.steps import Stage, Step

#: What is made by hand or by Kubernetes, not by the release.
_NOT_OURS: Final = {
    *(
        "secret/kafka-tandem",
        "secret/kafka-ca",
        "secret/bucket",
        "configmap/kube-root-ca.crt",
        "serviceaccount/default",
    ),
}
_STATE: Final = "/var/lib/tandem/heads/heads.json"
_CLAIMS: Final = "persistentvolumeclaim"
_SPARK: Final = "sparkapplications,scheduledsparkapplications"
_KINDS: Final = f"all,configmap,secret,serviceaccount,pdb,role,rolebinding,networkpolicy,cronjob,job,{_CLAIMS},{_SPARK}"


def upgrade_by_script(stage: Stage) -> str:
    """Change the configuration, and run the script of docs/kubernetes.md word for word: the Passive first."""
    cluster = stage.cluster
    active = cluster.active()
    generation = cluster.status()["restore"]["generation"]
    before = [cluster.pod(each)["metadata"]["uid"] for each in (0, 1)]
    stage.change("defaults.config.flush.interval", "4s")
    stage.upgrade()
    assert [cluster.pod(each)["metadata"]["uid"] for each in (0, 1)] == before, "an upgrade restarted a pod"
    # Its last command shows the state, with exit code 3 while the new Active has not been heard.
    done = cluster.type(guide().upgrade, check=False)
    assert done.returncode in {0, 3}, f"the script ended with {done.returncode}: {done.stderr.strip()[-300:]}"
    cluster.healthy()
    born = [cluster.pod(each)["metadata"]["creationTimestamp"] for each in (0, 1)]
    assert born[1 - active] < born[active], f"the Active's pod was first: {born}"
    now = cluster.status()["restore"]["generation"]
    assert now == generation, f"everything was read again: generation {now} after {generation}"
    assert "Active" in done.stdout
    return f"ordinal {1 - active} first, then {active}; generation {now} continues"


def rolling_update(stage: Stage) -> str:
    """With RollingUpdate a changed configuration restarts both pods, one after the other."""
    cluster = stage.cluster
    stage.change("defaults.updateStrategy", "RollingUpdate")
    stage.change("defaults.config.flush.interval", "3s")
    old = [cluster.pod(each)["metadata"]["uid"] for each in (0, 1)]
    stage.upgrade()
    cluster.until("both pods are new", lambda: not {cluster.pod(each)["metadata"]["uid"] for each in (0, 1)} & {*old})
    cluster.ready()
    cluster.healthy()
    born = [cluster.pod(each)["metadata"]["creationTimestamp"] for each in (0, 1)]
    assert born[1] < born[0], f"ordinal 0 was first: {born}"
    stage.change("defaults.updateStrategy", "OnDelete")
    stage.upgrade()
    cluster.healthy()
    return "ordinal 1, then 0"


def wrong_values(stage: Stage) -> str:
    """Wrong values are refused before anything changes; a wrong password ends a pod, and mending it is enough."""
    cluster = stage.cluster
    wrong: dict[str, Values] = {
        "a key that does not exist": {"defaults": {"config": {"flsh": {"interval": "5s"}}}},
        "a duration that is none": {"defaults": {"config": {"flush": {"interval": "soon"}}}},
        "a pair without topics": {"pairs": [{"name": "orders"}]},
        "a time zone that is none": {"defaults": {"jobs": {"timeZone": "Mars/Base"}}},
    }
    revision = _revision(cluster)
    refused = []
    for title, more in wrong.items():
        done = cluster.apply(over(stage.values, more), check=False)
        assert done.returncode != 0, f"{title} is accepted"
        refused.append(title)
    assert _revision(cluster) in {revision, revision + 1}
    passive = 1 - cluster.active()
    values = cluster.get("secret", "kafka-tandem")["data"]["password"]
    _patch_password(cluster, "d3Jvbmc=")
    cluster.kubectl("delete", "pod", f"{PAIR}-{passive}")
    cluster.until("the pod with a wrong password ends", lambda: _last_exit(cluster, passive) is not None, 180)
    code = _last_exit(cluster, passive)
    _patch_password(cluster, values)
    cluster.ready(timeout_s=240)
    cluster.healthy()
    return f"refused: {len(refused)}; a wrong password ends the pod with {code}, the right one mends it"


def state_volume(stage: Stage) -> str:
    """The volume is switched on as the docs say; what an instance has seen is known to its next pod."""
    cluster = stage.cluster
    for ordinal in (0, 1):
        cluster.create_volume(f"{PAIR}-{ordinal}")
    stage.change("defaults.stateVolume", {"enabled": True, "size": "8Mi"})
    cluster.type(guide().orphan)
    stage.upgrade()
    for ordinal in (0, 1):
        cluster.replace_pod(ordinal)
    cluster.healthy()
    passive = 1 - cluster.active()
    cluster.until("heads are remembered", lambda: bool(_remembered(cluster, passive)), 120)
    cluster.stop_store()
    try:
        before = _remembered(cluster, passive)
        # Nothing can be read, so what the new pod knows is from the volume.
        cluster.kubectl("delete", "pod", f"{PAIR}-{passive}")
        cluster.until("the new pod remembers heads", lambda: bool(_remembered(cluster, passive)), 90)
        after = _remembered(cluster, passive)
    finally:
        cluster.resume_store()
    assert after == before, f"the new pod remembers {after[:100]!r}, not {before[:100]!r}"
    cluster.ready()
    cluster.healthy()
    return "two claims; the new pod of the Passive knows the heads that the old one has seen"


def uninstall(stage: Stage) -> str:
    """Uninstall a release with the operator's objects: what was made by hand stays, and claims of the state volume."""
    cluster = stage.cluster
    cluster.create_operator_kinds()
    stage.change("defaults.spark.mode", "operator")
    stage.change("defaults.restore", {"enabled": True, "id": "at-the-end", "args": ["--suffix", ".end", "--yes"]})
    stage.upgrade()
    kinds = {each.partition(".")[0] for each in cluster.names(_SPARK)}
    assert kinds == {"sparkapplication", "scheduledsparkapplication"}, kinds
    claims = cluster.names(_CLAIMS)
    expected = {f"{_CLAIMS}/state-{PAIR}-{each}" for each in (0, 1)}
    assert claims in (set(), expected), claims
    cluster.type(guide().uninstall)
    cluster.type(guide().delete_check)
    left: set[str] = set()

    def gone() -> bool:
        left.clear()
        # What is there and should not be, and what should be and is not.
        left.update((cluster.names(_KINDS) - _NOT_OURS) ^ claims)
        return not left

    try:
        cluster.until("what the docs say is left, and nothing else", gone, 120)
    except AssertionError as error:
        raise AssertionError(f"{error}: {sorted(left)}") from None
    return f"left: what was made by hand, the pod of the last `helm test`, and claims: {len(claims)}"


def _revision(cluster: Cluster) -> int:
    done = cluster.run("helm", "-n", NAMESPACE, "history", RELEASE, "--max", "1", "-o", "json")
    found = re.search(r'"revision":(\d+)', done.stdout)
    assert found, done.stdout
    return int(found[1])


def _remembered(cluster: Cluster, ordinal: int) -> str:
    return cluster.kubectl("exec", f"{PAIR}-{ordinal}", "--", "cat", _STATE, check=False).stdout


def _patch_password(cluster: Cluster, encoded: str) -> None:
    cluster.kubectl("patch", "secret", "kafka-tandem", "-p", f'{{"data": {{"password": "{encoded}"}}}}')


def _last_exit(cluster: Cluster, ordinal: int) -> int | None:
    """Return the exit code of a container's last end, None if it has not ended."""
    state = cluster.pod(ordinal)["status"]["containerStatuses"][0]
    ended = state["state"].get("terminated") or state["lastState"].get("terminated")
    return ended["exitCode"] if ended else None


UPGRADES: Final = (
    Step("upgrade", "Upgrade by the documented script: the Passive first", upgrade_by_script),
    Step("rolling-update", "Upgrade by RollingUpdate", rolling_update),
)
ENDS: Final = (
    Step("state-volume", "A volume for what instances remember", state_volume),
    Step("wrong-values", "Wrong values, and a wrong password", wrong_values),
    Step("uninstall", "Uninstall", uninstall),
)
