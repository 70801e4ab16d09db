"""Steps about the two instances: install, readiness, handover, lost pods, lost nodes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Final

from kube.cluster_access import INSTANCES, Cluster
from kube.guide import guide
from kube.scene import KEY, NAMESPACE, PAIR, PASSWORD, create_topics, produce
from kube.steps import Stage, Step

#: Beside what the page has: the store here gives no identity to a service account.
_BUCKET: Final = [f"--from-literal=id={KEY.access_key}", f"--from-literal=secret={KEY.secret_key}"]
_OF_A_START: Final = {"Unhealthy", "FailedScheduling", "FailedMount"}


def install(stage: Stage) -> str:
    """Install by the ten minutes of docs/kubernetes.md into a namespace that enforces the standard *restricted*."""
    cluster = stage.cluster
    create_topics()
    produce(1000, "first")
    cluster.lay_desk(stage.values)
    cluster.type(guide().secrets.replace("password=…", f"password={PASSWORD}"))
    levels = [f"pod-security.kubernetes.io/{each}=restricted" for each in ("enforce", "warn", "audit")]
    cluster.kubectl("label", "namespace", NAMESPACE, *levels)
    cluster.kubectl("create", "secret", "generic", "bucket", *_BUCKET)
    done = cluster.type(guide().install)
    assert "warning" not in done.stderr.lower(), done.stderr.strip()
    kinds = {
        each.partition("/")[0] for each in cluster.names("statefulset,cronjob,configmap,service,serviceaccount,pdb")
    }
    return f"no warning; kinds of objects: {len(kinds)}"


def pods_ready(stage: Stage) -> str:
    """Both pods become ready on different nodes, without a warning, and the first generation becomes complete."""
    cluster = stage.cluster
    cluster.ready()
    nodes = {cluster.pod(ordinal)["spec"]["nodeName"] for ordinal in (0, 1)}
    assert len(nodes) == 2, f"both on {nodes}"
    status = cluster.healthy()
    restarts = [cluster.pod(each)["status"]["containerStatuses"][0]["restartCount"] for each in (0, 1)]
    assert restarts == [0, 0], f"restarts: {restarts}"
    events = cluster.get("events", "--field-selector", "type=Warning")["items"]
    # Probes before the first answer, and caches of scheduler and kubelet that are behind: the pods are ready since.
    wrong = [f"{each['reason']}: {each['message'][:80]}" for each in events if each["reason"] not in _OF_A_START]
    assert not wrong, wrong
    took_s = max(_seconds_until_ready(cluster, each) for each in (0, 1))
    cluster.type(guide().status)
    extras = json.loads(cluster.tandem(0, "version", "-o", "json").stdout)["extras"]
    assert not extras["spark"], f"the instances have another image than that of image.instanceTag: {extras}"
    generation = status["restore"]["generation"]
    return f"generation {generation} is complete; ready {took_s:.0f} s after the start, no restart; image without Spark"


def helm_test(stage: Stage) -> str:
    """`helm test` finds brokers, topics and store."""
    done = stage.cluster.type(guide().check)
    assert "Succeeded" in done.stdout, done.stdout[-300:]
    return next(line for line in reversed(done.stdout.splitlines()) if line.strip()).strip()[:100]


def rotate(stage: Stage) -> str:
    """The other instance takes its turn, by the command of the page through `kubectl exec`."""
    cluster = stage.cluster
    before, generation = cluster.active(), _generation(cluster)
    cluster.type(guide().rotate)
    cluster.healthy()
    after = cluster.active()
    assert after != before, f"{INSTANCES[after]} is still Active"
    assert _generation(cluster) > generation
    return f"Active was {INSTANCES[before]}, is {INSTANCES[after]}"


def _renewed(cluster: Cluster, old: dict[int, str]) -> bool:
    """Return whether each pod is another one than that of this uid."""
    return all(cluster.pod(each)["metadata"]["uid"] != uid for each, uid in old.items())


def delete_pods(stage: Stage) -> str:
    """Each pod is deleted, then both at once; the backup goes on and takes what is written afterwards."""
    cluster = stage.cluster
    generation = _generation(cluster)
    for ordinals in ((0,), (1,), (0, 1)):
        old = {each: cluster.pod(each)["metadata"]["uid"] for each in ordinals}
        cluster.kubectl("delete", "pod", *(f"{PAIR}-{each}" for each in ordinals))
        cluster.until("new pods", partial(_renewed, cluster, old))
        cluster.ready()
    produce(500, "after pods")
    cluster.healthy()
    _caught_up(cluster)
    now = _generation(cluster)
    assert now == generation, f"everything was read again: generation {now} after {generation}"
    return f"three times; generation {now} continues, nothing was read again"


def evict(stage: Stage) -> str:
    """One pod may be evicted, the second only when the first is ready again; then a node is drained."""
    cluster = stage.cluster
    active = cluster.active()
    first, second = f"{PAIR}-{1 - active}", f"{PAIR}-{active}"
    assert _evict(cluster, first) == "201", "the Passive's eviction is refused"
    refused = _evict(cluster, second)
    assert refused == "429", f"the second eviction ends with {refused}"
    cluster.ready()
    node = cluster.pod(active)["spec"]["nodeName"]
    words = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
    cluster.kubectl("drain", node, *words)
    cluster.kubectl("uncordon", node)
    cluster.ready()
    cluster.healthy()
    return f"201, then 429; {node} drained"


def outage(stage: Stage) -> str:
    """The store stands still: both pods are not ready, none is restarted, the budget lets both go; then all is well."""
    cluster = stage.cluster
    cluster.stop_store()
    try:
        took_s = cluster.until("no pod is ready", lambda: not cluster.is_ready(0) and not cluster.is_ready(1), 180)
        restarts = [cluster.pod(each)["status"]["containerStatuses"][0]["restartCount"] for each in (0, 1)]
        evicted = [_evict(cluster, f"{PAIR}-{each}") for each in (0, 1)]
    finally:
        cluster.resume_store()
    assert restarts == [0, 0], f"restarts: {restarts}"
    assert evicted == ["201", "201"], f"pods that are not ready can't be evicted: {evicted}"
    cluster.ready()
    cluster.healthy()
    return f"both not ready after {took_s:.0f} s, no restart; evictions: 201, 201; ready again when it answered"


def power_cut(stage: Stage) -> str:
    """The Active's node loses power: the other instance takes over; the node comes back with the other as Passive."""
    cluster = stage.cluster
    active, node = _apart(cluster)
    other, generation = 1 - active, _generation(cluster)
    cluster.cut_power(node)
    produce(500, "in the dark")
    took_s, complete_s = _taken_over(cluster, other, generation)
    cluster.restore_power(node)
    _all_well(cluster, other, "verify-power-cut")
    assert cluster.active(other) == other, "the instance that came back took over"
    return f"taken over after {took_s:.0f} s, complete {complete_s:.0f} s later; back as Passive; verified"


def failover_dead(stage: Stage) -> str:
    """The Active's node loses power; `tandem failover` has the other take over at once, and ends at the return."""
    cluster = stage.cluster
    active, node = _apart(cluster)
    other, generation, container = 1 - active, _generation(cluster), cluster.container(active)
    with ThreadPoolExecutor(1) as beside:
        cluster.cut_power(node)
        try:
            command = beside.submit(cluster.type, guide().failover, ordinal=other)
            produce(500, "failed over")
            took_s = cluster.until("a generation is complete", lambda: _generation(cluster, other) > generation, 240)
            history = cluster.tandem(other, "history", "-g", str(_generation(cluster, other)), "-o", "json").stdout
            assert "manual failover" in history, "the generation was not built because of the request"
            assert not command.done(), f"the command ended before the return: {command.result().stdout[-300:]}"
        finally:
            cluster.restore_power(node)
        cluster.until("the lost instance runs again", lambda: cluster.container(active) != container, 300)
        command.result()
    _all_well(cluster, other, "verify-failover-dead")
    assert cluster.active(other) == other, "the instance that came back took over"
    return f"complete {took_s:.0f} s after the cut, by request; the command ended when the node was back; verified"


def partition(stage: Stage) -> str:
    """The Active's node loses its network, and its pod is deleted by force: two processes have one name for a while."""
    cluster = stage.cluster
    active, node = _apart(cluster)
    other, generation, container = 1 - active, _generation(cluster), cluster.container(active)
    old = cluster.pod(active)["metadata"]["uid"]
    cluster.cut_network(node)
    try:
        produce(500, "apart")
        took_s, _ = _taken_over(cluster, other, generation)
        cluster.until(f"{node} counts as lost", lambda: not cluster.node_ready(node), 120)
        cluster.type(guide().forced_delete, ordinal=active)
        cluster.until("a new pod", lambda: cluster.pod(active)["metadata"]["uid"] != old)
        cluster.ready(active)
        cluster.healthy(other)
        produce(500, "two of one name")
        assert cluster.processes(node, container), "the old process ended before its network was back"
    finally:
        cluster.restore_network(node)
    ended_s = cluster.until("the old process ends", lambda: not cluster.processes(node, container), 240)
    _all_well(cluster, other, "verify-partition")
    assert cluster.active(other) == other, "the instance that was cut off took over"
    return f"taken over after {took_s:.0f} s; the old process ended {ended_s:.0f} s after the return; verified"


def blackout(stage: Stage) -> str:
    """Both nodes lose power at once, and come back; what was written meanwhile is backed up."""
    cluster = stage.cluster
    _apart(cluster)
    generation = _generation(cluster)
    containers = [cluster.container(each) for each in (0, 1)]
    nodes = sorted(each.partition("/")[2] for each in cluster.names("nodes"))
    for node in nodes:
        cluster.cut_power(node)
    try:
        produce(500, "in the blackout")
        cluster.until("no node is ready", lambda: not any(cluster.node_ready(each) for each in nodes), 180)
    finally:
        for node in nodes:
            cluster.restore_power(node)
    took_s = cluster.until(
        "both instances run again", lambda: all(cluster.container(each) != containers[each] for each in (0, 1)), 300
    )
    _all_well(cluster, 0, "verify-blackout")
    now = _generation(cluster)
    assert now >= generation, f"generation {now} after {generation}"
    return f"{len(nodes)} nodes; both run again {took_s:.0f} s after the power was back, generation {now}; verified"


def _apart(cluster: Cluster) -> tuple[int, str]:
    """Bring the pods to two nodes, where a drain has left both on one; return the Active's ordinal and its node."""
    if len({cluster.pod(each)["spec"]["nodeName"] for each in (0, 1)}) == 1:
        cluster.kubectl("delete", "pod", f"{PAIR}-{1 - cluster.active()}")
        cluster.ready()
        cluster.healthy(cluster.active())
    active = cluster.active()
    node: str = cluster.pod(active)["spec"]["nodeName"]
    assert node != cluster.pod(1 - active)["spec"]["nodeName"], "both pods are on one node"
    return active, node


def _taken_over(cluster: Cluster, ordinal: int, generation: int) -> tuple[float, float]:
    """Wait until an instance is Active, then for a complete generation after this one; return how long each took."""
    took_s = cluster.until("the other one is Active", lambda: cluster.active(ordinal) == ordinal, 240)
    return took_s, cluster.until("its generation is complete", lambda: _generation(cluster, ordinal) > generation, 120)


def _all_well(cluster: Cluster, ordinal: int, job: str) -> None:
    """Wait for one Active, one Passive and no lag; then compare the newest record of every key with the topics."""
    cluster.ready(timeout_s=420)
    cluster.healthy(ordinal, 300)
    _caught_up(cluster, ordinal)
    cluster.job_from("verify", job, "--against-topic")
    cluster.job_ended(job)


def _seconds_until_ready(cluster: Cluster, ordinal: int) -> float:
    """Return the seconds from the start of the container to the pod's readiness."""
    status = cluster.pod(ordinal)["status"]
    (ready,) = (each["lastTransitionTime"] for each in status["conditions"] if each["type"] == "Ready")
    started = status["containerStatuses"][0]["state"]["running"]["startedAt"]
    return (datetime.fromisoformat(ready) - datetime.fromisoformat(started)).total_seconds()


def _generation(cluster: Cluster, ordinal: int = 0) -> int:
    """Return the generation that a restore would read."""
    number: int = cluster.status(ordinal)["restore"]["generation"]
    return number


def _caught_up(cluster: Cluster, ordinal: int = 0) -> None:
    cluster.until("lag is 0", lambda: cluster.status(ordinal)["restore"]["lag"] == 0, 90)


def _evict(cluster: Cluster, pod: str) -> str:
    """Return the code of HTTP that the API server answers an eviction with."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    done = cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body), check=False)
    if done.returncode == 0:
        return "201"
    return (
        "429"
        if "TooManyRequests" in done.stdout + done.stderr or "disruption budget" in done.stderr
        else done.stderr.strip()
    )


STEPS: Final = (
    Step("install", "Install into a namespace that enforces *restricted*", install),
    Step("ready", "Both pods ready, first generation complete", pods_ready),
    Step("helm-test", "`helm test`", helm_test),
    Step("rotate", "Roles exchanged through `kubectl exec`", rotate),
    Step("delete-pods", "Each pod deleted, then both", delete_pods),
    Step("evict", "Eviction against the disruption budget, and a drain", evict),
    Step("outage", "The store stands still for minutes", outage),
    Step("power-cut", "Power cut of the Active's node, and its return", power_cut),
    Step("failover-dead", "`tandem failover` while the Active's node has no power", failover_dead),
    Step("partition", "Network cut of the Active's node, and its pod deleted by force", partition),
    Step("blackout", "Power cut of both nodes at once, and their return", blackout),
)
