"""Steps about the jobs: verify, retention, drill and restores by hand, a killed restore, Spark on Kubernetes."""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from kube.cluster_access import Cluster
from kube.guide import guide
from kube.scene import PAIR, PASSWORD, TOPICS, produce, same_records, topics, written
from kube.spark_submit import submit
from kube.steps import Stage, Step

_KILLED: Final = 60_000


def jobs_by_hand(stage: Stage) -> str:
    """Verify, retention and drill as Jobs made from their CronJobs; the status document has their outcomes."""
    cluster = stage.cluster
    stage.change("defaults.drill.enabled", value=True)
    stage.change("defaults.retention.execute", value=True)
    stage.upgrade()
    jobs = ("verify", "retention", "drill")
    before = topics()
    for job in jobs:
        cluster.job_from(job, f"{job}-by-hand")
        cluster.job_ended(f"{job}-by-hand")
    status = cluster.status()
    for name in ("lastVerify", "lastDrill", "lastRetention"):
        assert (status[name] or {}).get("clean"), f"{name}: {status[name]}"
    # The progress of restores and the broker's own topics stay.
    left = {each for each in topics() - before if not each.startswith("_")}
    assert not left, f"a drill left {sorted(left)}"
    return f"all clean; the drill read {status['lastDrill']['records']} records"


def restore(stage: Stage) -> str:
    """A restore beside the source, begun from the suspended CronJob; the records are compared with the source's."""
    cluster = stage.cluster
    uids = _uids(cluster)
    stage.merge(guide().on_demand)
    stage.upgrade()
    _settled(cluster)
    cluster.type(guide().restore)
    cluster.job_ended("restore-1")
    assert cluster.type(guide().restore_log).stdout.strip(), "the job has no log"
    keys = same_records(".restored")
    assert _uids(cluster) == uids, "the restore restarted an instance"
    return f"{keys} keys, all with the newest value of the source"


def restore_other_cluster(stage: Stage) -> str:
    """A restore as a part of the release, with a file of its own, under RollingUpdate: no instance is restarted."""
    cluster = stage.cluster
    client = {**stage.values["defaults"]["config"]["kafka"], "sasl.password": PASSWORD}
    target = "".join(f"{key}: {value}\n" for key, value in client.items())
    cluster.kubectl("create", "secret", "generic", "target-cluster", f"--from-literal=target.yaml={target}")
    stage.change("defaults.updateStrategy", "RollingUpdate")
    stage.upgrade()
    uids = _uids(cluster)
    # The target of the page is another cluster, and its moment is of another day.
    settings = guide().other_cluster["pairs"][0]["restore"]
    option = settings["args"].index("--target-config")
    args = ["--suffix", ".moved", "--topics", ",".join(TOPICS), *settings["args"][option : option + 2], "--yes"]
    stage.change("defaults.restore", {**settings, "args": args})
    _settled(cluster)
    stage.upgrade()
    name = next(each for each in cluster.names("job") if "restore-incident-42" in each).partition("/")[2]
    cluster.job_ended(name)
    keys = same_records(".moved")
    assert _uids(cluster) == uids, "the restore restarted an instance"
    stage.change("defaults.restore", {"enabled": False})
    stage.change("defaults.updateStrategy", "OnDelete")
    stage.upgrade()
    cluster.kubectl("delete", "secret", "target-cluster")
    return f"{keys} keys; no instance restarted"


def killed_restore(stage: Stage) -> str:
    """The pod of a restore is killed while it loads; the Job's next pod resumes, and the records are the source's."""
    cluster = stage.cluster
    produce(_KILLED, "for the kill")
    stage.change("defaults.restore", {"onDemand": True, "args": ["--suffix", ".killed", "--yes", "--rate", "400KiB"]})
    stage.upgrade()
    _settled(cluster)
    cluster.job_from("restore", "restore-killed")
    selector = "job-name=restore-killed"
    cluster.until("the restore loads", lambda: written("orders.eu.killed") > 0, 240)
    pod = cluster.get("pods", "-l", selector)["items"][0]["metadata"]["name"]
    cluster.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
    log = cluster.job_ended("restore-killed")
    pods = cluster.get("pods", "-l", selector)["items"]
    assert pod not in {each["metadata"]["name"] for each in pods}
    keys = same_records(".killed")
    extra = sorted(each for each in topics() if each.count(".killed") > 1 or ".restored.killed" in each)
    assert not extra, f"the restore restored restored topics: {extra}"
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "")
    return f"resumed; {keys} keys as in the source ({last.strip()[:60]})"


def spark_operator(stage: Stage) -> str:
    """The operator's objects are accepted by the API server, and its pods run by Spark's own submission."""
    cluster = stage.cluster
    cluster.create_operator_kinds()
    stage.change("defaults.restore", {"enabled": False})
    stage.change("defaults.drill.enabled", value=True)
    # Every object, so that the job has tasks long enough to lose an executor in.
    stage.change("defaults.verify", {"sample": ""})
    stage.merge({"defaults": {"spark": guide().spark["defaults"]["spark"]}})
    # Two cores are here, not sixteen.
    stage.change("defaults.spark.driver", {"cores": 1, "memory": "1g"})
    stage.change("defaults.spark.executor", {"instances": 2, "cores": 1, "memory": "512m", "memoryOverhead": "512m"})
    stage.upgrade()
    made = sorted(cluster.names("scheduledsparkapplications"))
    assert len(made) == 3, made
    application = cluster.get("scheduledsparkapplication", f"{PAIR}-verify")["spec"]["template"]
    before = (cluster.status().get("lastVerify") or {}).get("at")
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(submit, cluster, application)
        lost = _lose_executor(cluster, running)
        log = running.result()
    # The operator deletes the driver with its application; here nobody else does.
    cluster.kubectl("delete", "pod", "-l", "spark-role=driver")
    after = cluster.status()["lastVerify"]
    assert after["clean"], after
    assert after["at"] != before, f"no verification was recorded: {log[-300:]}"
    stage.change("defaults.spark", {"mode": "local"})
    stage.upgrade()
    return f"{len(made)} ScheduledSparkApplications accepted; a verification whose executor {lost} was killed is clean"


def _lose_executor(cluster: Cluster, running: Future[str]) -> str:
    """Delete an executor that has a task, while the store stands still so that the job can't end; return its number."""
    found: list[str] = []

    def printed() -> str:
        return cluster.kubectl("logs", "-l", "spark-role=driver", "--tail=-1", check=False).stdout

    def at_work() -> bool:
        found[:] = re.findall(r"Starting task .*?executor (\d+)", printed())[:1]
        return bool(found) or running.done()

    cluster.until("an executor has a task", at_work, 240)
    assert not running.done(), "the application ended before an executor could be killed"
    cluster.stop_store()
    try:
        selector = f"spark-role=executor,spark-exec-id={found[0]}"
        cluster.kubectl("delete", "pod", "-l", selector, "--grace-period=0", "--force")
        cluster.until("the driver misses it", lambda: f"Lost executor {found[0]}" in printed(), 120)
    finally:
        cluster.resume_store()
    return found[0]


def _settled(cluster: Cluster) -> None:
    """Wait until the backup has everything that is in the topics."""
    cluster.healthy()
    cluster.until("lag is 0", lambda: cluster.status()["restore"]["lag"] == 0, 120)


def _uids(cluster: Cluster) -> list[str]:
    return [cluster.pod(each)["metadata"]["uid"] for each in (0, 1)]


JOBS: Final = (
    Step("jobs", "Verify, retention and drill by hand", jobs_by_hand),
    Step("restore", "Restore by hand from the suspended CronJob", restore),
    Step("restore-file", "Restore of the release with a file of its own, under RollingUpdate", restore_other_cluster),
    Step("restore-killed", "Restore whose pod is killed", killed_restore),
    Step("spark", "The Spark operator's objects, and Spark on Kubernetes with a killed executor", spark_operator),
)
