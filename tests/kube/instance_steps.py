"""Steps about the two instances: install, readiness, handover, lost pods, lost nodes."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Final

from kube.cluster_access import INSTANCES, Cluster
from kube.scene import KEY, NAMESPACE, PAIR, PASSWORD, create_topics, produce
from kube.steps import Stage, Step

_SECRETS: Final = {
    "kafka-tandem": [f"--from-literal=password={PASSWORD}"],
    "bucket": [f"--from-literal=id={KEY.access_key}", f"--from-literal=secret={KEY.secret_key}"],
}


_OF_A_START: Final = {"Unhealthy", "FailedScheduling", "FailedMount"}


def install(stage: Stage) -> str:
    """Install by the ten minutes of docs/kubernetes.md into a namespace that enforces the standard *restricted*."""
    cluster = stage.cluster
    create_topics()
    produce(1000, "first")
    cluster.kubectl("create", "namespace", NAMESPACE)
    levels = [f"pod-security.kubernetes.io/{each}=restricted" for each in ("enforce", "warn", "audit")]
    cluster.kubectl("label", "namespace", NAMESPACE, *levels)
    authority = f"--from-file=ca.crt={cluster.cache / 'pki' / 'ca.crt'}"
    for name, words in {**_SECRETS, "kafka-ca": [authority]}.items():
        cluster.kubectl("create", "secret", "generic", name, *words)
    done = cluster.apply(stage.values, verb="install")
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
    return f"generation {status['restore']['generation']} is complete; ready {took_s:.0f} s after the start, no restart"


def helm_test(stage: Stage) -> str:
    """`helm test` finds brokers, topics and store."""
    done = stage.cluster.run("helm", "-n", NAMESPACE, "test", "tandem", "--logs")
    assert "Succeeded" in done.stdout, done.stdout[-300:]
    return next(line for line in reversed(done.stdout.splitlines()) if line.strip()).strip()[:100]


def rotate(stage: Stage) -> str:
    """The other instance takes its turn, by the command of the notes through `kubectl exec`."""
    cluster = stage.cluster
    before, generation = cluster.active(), _generation(cluster)
    cluster.tandem(0, "rotate", "--yes")
    cluster.healthy()
    after = cluster.active()
    assert after != before, f"{INSTANCES[after]} is still Active"
    assert _generation(cluster) > generation
    return f"Active was {INSTANCES[before]}, is {INSTANCES[after]}"


def delete_pods(stage: Stage) -> str:
    """Each pod is deleted, then both at once; the backup goes on and takes what is written afterwards."""
    cluster = stage.cluster
    generation = _generation(cluster)
    for ordinals in ((0,), (1,), (0, 1)):
        old = {each: cluster.pod(each)["metadata"]["uid"] for each in ordinals}
        cluster.kubectl("delete", "pod", *(f"{PAIR}-{each}" for each in ordinals))
        cluster.until(
            "new pods", lambda old=old: all(cluster.pod(each)["metadata"]["uid"] != uid for each, uid in old.items())
        )
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
    # Draining may have left both on one node.
    if len({cluster.pod(each)["spec"]["nodeName"] for each in (0, 1)}) == 1:
        cluster.kubectl("delete", "pod", f"{PAIR}-{1 - cluster.active()}")
        cluster.ready()
        cluster.healthy(cluster.active())
    active = cluster.active()
    other = 1 - active
    node, generation = cluster.pod(active)["spec"]["nodeName"], _generation(cluster)
    assert node != cluster.pod(other)["spec"]["nodeName"], "both pods are on one node"
    cluster.cut_power(node)
    produce(500, "in the dark")
    took_s = cluster.until("the other one is Active", lambda: cluster.active(other) == other, 240)
    complete_s = cluster.until("its generation is complete", lambda: _generation(cluster, other) > generation, 120)
    cluster.restore_power(node)
    cluster.ready(timeout_s=420)
    cluster.healthy(other, 300)
    assert cluster.active(other) == other, "the instance that came back took over"
    _caught_up(cluster, other)
    return f"taken over after {took_s:.0f} s, complete {complete_s:.0f} s later; back as Passive"


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
)
