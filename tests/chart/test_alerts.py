"""Every alert fires on what its cause makes of the metrics, and clears: rules by helm, evaluated by promtool.

Most causes are produced with real instances in the simulation (`simulation.scenes`), the others on real chains and
results in a store. The rules are those of the chart, with seconds instead of minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.backups.build_backup import PAIR as BUILT_PAIR
from support.backups.build_backup import Backup, records
from support.pages.alerting import CHART, PAIR, REPOSITORY, History, Moments, ask, check, rendered, rules, shown
from support.pairs.sights import sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.documents.outcome import JobKind, JobOutcome
from tandem.backup_avro.selection.losses import vanished_reason
from tandem.controller.decision.loss_sign_format import LossKind, LossSign
from tandem.controller.decision.observation import Role
from tandem.controller.metrics.instance_metrics import InstanceMetrics, LastRuns, collect_backup_metrics
from tandem.controller.metrics.page import MetricDetail, MetricsPage
from tandem.sink.store.chain import outcomes

SCENES: dict[str, set[str]] = {
    "first_backup": {"TandemNoCompleteBackup"},
    "active_dies": {"TandemNoActive", "TandemInstanceDown", "TandemNoPassive", "TandemPeerSilent"},
    "pair_dies": {"TandemPairDown"},
    "records_deleted_unread": {"TandemTainted"},
    "bucket_rolled_back": {"TandemRolledBack"},
    "objects_stolen": {"TandemCoverLost"},
    "files_differ": {"TandemInstancesDisagree"},
    "brokers_away": {
        "TandemBrokersUnreachable",
        "TandemCoordinationLost",
        "TandemLag",
        "TandemNotCommitting",
        "TandemTombstoneMarginLow",
        "TandemTurnOverdue",
    },
    "store_away": {"TandemStoreErrors"},
    "partition_without_leader": {"TandemPartitionsUnread"},
    "former_active_cannot_seal": {"TandemHandoverStuck"},
    "hanging_transaction": {"TandemStableOffsetStuck"},
}
ON_A_STORE = {
    "TandemChainDamaged",
    "TandemDutyFails",
    "TandemInstanceNotReady",
    "TandemKeyMissing",
    "TandemKeysVanished",
    "TandemLossSigns",
    "TandemObjectsExpire",
    "TandemRecoveryWindowShort",
} | {f"Tandem{kind.value.capitalize()}{what}" for kind in JobKind for what in ("Failed", "Stale")}
# The simulation's turns take 15 s, its tombstones live 1000 s.
THRESHOLDS = {
    "TandemNotCommitting": 10,
    "TandemTombstoneMarginLow": 0.98,
    "TandemLag": 5,
    "TandemHandoverStuck": 3,
    "TandemTurnOverdue": 10,
    "TandemStoreErrors": 60,
    "TandemVerifyStale": 5,
    "TandemDrillStale": 5,
    "TandemRetentionStale": 5,
}


def alerts() -> list[str]:
    """The names of all alerts of the chart."""
    found = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["rules"]
    return list(dict.fromkeys(rule["alert"] for rule in found))


def installed(values: dict[str, Any], **pair: Any) -> dict[str, dict[str, Any]]:
    """The rules of the chart with these values for `metrics`, and these for the pair, by name."""
    (found,) = [one for one in rendered(values, **pair) if one["kind"] == "PrometheusRule"]
    return {rule["alert"]: rule for rule in found["spec"]["groups"][0]["rules"]}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rules with short times."""
    return rules(
        tmp_path_factory.mktemp("quick"),
        {
            name: {"for": "2s", "enabled": True} | ({"threshold": THRESHOLDS[name]} if name in THRESHOLDS else {})
            for name in alerts()
        },
    )


def play(scene: str) -> dict[str, Any]:
    """Play a scene in a process of its own, which the simulation patches all through."""
    played = subprocess.run(
        [sys.executable, "-m", "simulation.scenes", scene],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "tests"), "PYTHONHASHSEED": "0"},
    )
    assert played.returncode == 0, played.stderr
    told: dict[str, Any] = json.loads(played.stdout)
    return told


def test_every_alert_has_a_cause_here() -> None:
    """No rule without a test, and no test of a rule that is not there."""
    produced = [*ON_A_STORE, *(name for names in SCENES.values() for name in names)]
    assert sorted(produced) == sorted(alerts())


@pytest.mark.parametrize("scene", SCENES)
def test_simulated_causes(scene: str, quick: Path) -> None:
    """Real instances get into trouble and out of it again: not before, then, and not after."""
    told = play(scene)
    expected = {name: Moments(**moments) for name, moments in told["expected"].items()}
    assert set(expected) == SCENES[scene]
    ask(quick, History(**told["history"]), expected)


# --- causes that lie in the store -------------------------------------------------------------------------------------


class Watched:
    """An Active that shows a store's chains and results, second by second."""

    def __init__(self) -> None:
        self.store = MemoryStore(clock_ms=1_800_000_000_000)
        self.epoch = self.store.clock_ms / 1000
        self.history = History(epoch=self.epoch)
        self.window_s = 0.0
        self.reader = outcomes.OutcomeReader(self.store, BUILT_PAIR)
        self.page = MetricsPage(
            pair=PAIR,
            instance="a",
            transcoder=lambda: "compiled",
            detail=MetricDetail(),
            now=lambda: self.store.clock_ms / 1000,
        )
        self.page.look = lambda: InstanceMetrics(
            role=Role.ACTIVE, backup=collect_backup_metrics(sight(self.store, window_s=self.window_s), "a")
        )
        self.page.results = lambda: LastRuns(known=True, last=self.reader.refresh())
        Backup.completed(self.store, records("orders", 0, range(10)))

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.store.clock_ms = round((self.epoch + self.history.ticks) * 1000)
            self.history.scrape([self.page])

    def ran(self, kind: JobKind, *, clean: bool) -> None:
        outcome = JobOutcome(
            kind=kind,
            pair=BUILT_PAIR,
            at=self.store.clock_ms,
            by="me@here",
            clean=clean,
            what="all",
            findings=0 if clean else 3,
            records=7,
            bytes=9,
        )
        outcomes.put_outcome(self.store, outcome)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_damaged_chain(watched: Watched, quick: Path) -> None:
    """An entry is gone, and is brought back from the bucket's versions."""
    key = layout.entry_key(BUILT_PAIR, 1, 2)
    watched.seconds(5)
    kept = watched.store.objects[key]
    watched.store.objects[key] = b"{}"
    watched.seconds(6)
    watched.store.objects[key] = kept
    watched.seconds(6)
    ask(quick, watched.history, {"TandemChainDamaged": Moments(before=4, fires=10, after=16)})


def test_keys_vanish_and_are_released(watched: Watched, quick: Path) -> None:
    """A generation is cleared but for a partition that alone has them, and then as a whole."""
    older = Backup.completed(watched.store, records("orders", 0, range(10)), number=2)
    Backup.completed(watched.store, records("orders", 0, range(10)), number=3)
    older.seal()
    watched.seconds(5)
    older.append(EntryKind.CLEARED, clearing=older.clearing({older.key("orders", 0): vanished_reason(3, 3, [1, 2, 3])}))
    watched.seconds(6)
    older.append(EntryKind.CLEARED, clearing=older.clearing())
    watched.seconds(6)
    ask(quick, watched.history, {"TandemKeysVanished": Moments(before=4, fires=10, after=16)})


def test_a_window_is_raised_after_copies_are_gone(watched: Watched, quick: Path) -> None:
    """Until the oldest copy that is left is as old as the window is long."""
    watched.seconds(5)
    watched.window_s = 12.0
    watched.seconds(15)
    ask(quick, watched.history, {"TandemRecoveryWindowShort": Moments(before=4, fires=10, after=18)})


def test_topics_may_have_lost_records(watched: Watched, quick: Path) -> None:
    """As long as an instance tells a sign of a kind."""
    plain = watched.page.look
    watched.page.look = lambda: replace(plain(), loss_signs=())
    watched.seconds(5)
    sign = LossSign(kind=LossKind.POLICY, topic="orders", at=0, last_good=0, what="its policy")
    watched.page.look = lambda: replace(plain(), loss_signs=(sign,))
    watched.seconds(6)
    watched.page.look = lambda: replace(plain(), loss_signs=())
    watched.seconds(6)
    ask(quick, watched.history, {"TandemLossSigns": Moments(before=4, fires=10, after=16)})


@pytest.mark.parametrize(
    ("alert", "count"), [("TandemKeyMissing", "missing_keys"), ("TandemDutyFails", "failing_duties")]
)
def test_something_is_lacking_for_some_seconds(watched: Watched, quick: Path, alert: str, count: str) -> None:
    """A key that is taken out of the configuration and named again; a right that is withdrawn and granted again."""
    plain = watched.page.look
    for many, seconds in ((0, 5), (1, 6), (0, 6)):
        watched.page.look = lambda many=many: replace(plain(), **{count: many})  # type: ignore[misc]
        watched.seconds(seconds)
    ask(quick, watched.history, {alert: Moments(before=4, fires=10, after=16)})


def test_a_lifecycle_rule_is_made_and_ended(watched: Watched, quick: Path) -> None:
    """By someone who owns the bucket."""
    for many, seconds in ((0, 5), (1, 6), (0, 6)):
        watched.page.results = lambda many=many: LastRuns(known=True, lifecycle_rules=many)  # type: ignore[misc]
        watched.seconds(seconds)
    ask(quick, watched.history, {"TandemObjectsExpire": Moments(before=4, fires=10, after=16)})


def test_an_instance_waits_at_its_start(watched: Watched, quick: Path) -> None:
    """Its page is there from the first moment on, and says that it starts. With nobody else, nobody is Active."""
    ready = watched.page.look
    watched.page.look = InstanceMetrics
    watched.page.results = LastRuns
    watched.seconds(6)
    watched.page.look = lambda: replace(ready(), ready=True)
    watched.seconds(6)
    moments = Moments(before=1, fires=5, after=11)
    ask(quick, watched.history, {"TandemInstanceNotReady": moments, "TandemNoActive": moments})


@pytest.mark.parametrize("kind", JobKind)
def test_a_job_fails_and_is_run_again(kind: JobKind, watched: Watched, quick: Path) -> None:
    """The last result counts, whoever ran it."""
    watched.ran(kind, clean=True)
    watched.seconds(3)
    watched.ran(kind, clean=False)
    watched.seconds(5)
    watched.ran(kind, clean=True)
    watched.seconds(4)
    ask(quick, watched.history, {f"Tandem{kind.value.capitalize()}Failed": Moments(before=2, fires=7, after=11)})


@pytest.mark.parametrize("kind", JobKind)
@pytest.mark.parametrize("ever", [True, False], ids=["once", "never"])
def test_a_job_is_not_run_any_more(kind: JobKind, ever: bool, watched: Watched, quick: Path) -> None:
    """Nor ever was: both are told, until one ends."""
    if ever:
        watched.ran(kind, clean=True)
    watched.seconds(12)
    watched.ran(kind, clean=True)
    watched.seconds(4)
    ask(quick, watched.history, {f"Tandem{kind.value.capitalize()}Stale": Moments(before=4, fires=11, after=15)})


# --- the objects themselves -------------------------------------------------------------------------------------------


def test_the_rules_as_they_are_installed(tmp_path: Path) -> None:
    """Promtool takes expressions and templates; each has a severity and texts."""
    path = rules(tmp_path)
    check(path)
    (group,) = yaml.safe_load(path.read_text())["groups"]
    unasked = {"TandemDrillStale", "TandemRetentionStale"}  # no job of the chart, as it comes, would ever end them
    names = list(dict.fromkeys(rule["alert"] for rule in group["rules"]))
    assert names == [name for name in alerts() if name not in unasked]
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["labels"]["pair"] == PAIR
        assert f'pair="{PAIR}"' in rule["expr"]
        assert not any("<" in text.replace("< ", "") for text in (rule["expr"], *rule["annotations"].values()))
        assert "runbook_url" not in rule["annotations"]  # nobody has said under which URL


def test_rules_follow_the_values(tmp_path: Path) -> None:
    """One is switched off, one gets another threshold and severity; labels and matchers are added."""
    (found,) = [
        document
        for document in rendered(
            {
                "rules": {
                    "enabled": True,
                    "labels": {"release": "prom"},
                    "alertLabels": {"team": "data"},
                    "matchers": 'namespace="backup"',
                    "runbookUrl": "https://wiki.example/tandem",
                    "alerts": {
                        "TandemLag": {"threshold": 5, "severity": "page"},
                        "TandemDrillStale": {"enabled": False},
                    },
                }
            }
        )
        if document["kind"] == "PrometheusRule"
    ]
    assert found["metadata"]["labels"]["release"] == "prom"
    by_name = {rule["alert"]: rule for rule in found["spec"]["groups"][0]["rules"]}
    assert set(alerts()) - set(by_name) == {"TandemDrillStale", "TandemRetentionStale"}
    lag = by_name["TandemLag"]
    assert lag["labels"] == {"severity": "page", "pair": PAIR, "team": "data"}
    assert lag["expr"].endswith("> 5")
    assert lag["expr"].count('pair="orders", namespace="backup"') == 2
    assert lag["annotations"]["runbook_url"] == "https://wiki.example/tandem#tandemlag"
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(found["spec"]))
    check(path)


def test_a_job_that_is_not_run_alarms_nobody() -> None:
    """What the chart runs for the pair is waited for; what others run, if the values say so."""
    stale = {f"Tandem{kind.value.capitalize()}Stale" for kind in JobKind}
    on: dict[str, Any] = {"rules": {"enabled": True}}
    assert set(installed(on)) & stale == {"TandemVerifyStale"}
    assert set(installed(on, verify={"enabled": False})) & stale == set()
    everything = {"drill": {"enabled": True}, "retention": {"execute": True}}
    assert set(installed(on, **everything)) & stale == stale
    elsewhere = {"rules": {"enabled": True, "alerts": {"TandemDrillStale": {"enabled": True}}}}
    assert set(installed(elsewhere)) & stale == {"TandemVerifyStale", "TandemDrillStale"}


def test_a_turn_is_overdue_by_the_turns_of_its_pair() -> None:
    """Half of its own interval, unless a threshold is given."""
    on: dict[str, Any] = {"rules": {"enabled": True}}
    hourly = {"topics": {"include": ["customers"]}, "rotation": {"interval": "1h"}}
    assert installed(on)["TandemTurnOverdue"]["expr"].endswith("> 302400")
    assert installed(on, config=hourly)["TandemTurnOverdue"]["expr"].endswith("> 1800")
    given = {"rules": {"enabled": True, "alerts": {"TandemTurnOverdue": {"threshold": 60}}}}
    assert installed(given, config=hourly)["TandemTurnOverdue"]["expr"].endswith("> 60")


def test_commits_are_missed_by_the_flush_interval_of_their_pair() -> None:
    """As long as `tandem status` says that all is well."""
    on: dict[str, Any] = {"rules": {"enabled": True}}
    topics = {"topics": {"include": ["customers"]}}
    for interval, limit in (("60s", 1800), ("5m", 1800), ("1h", 11700), ("1d", 260100)):
        config = topics | {"flush": {"interval": interval}}
        assert installed(on, config=config)["TandemNotCommitting"]["expr"].endswith(f"> {limit}")
    assert installed(on)["TandemNotCommitting"]["expr"].endswith("> 1800")
    given = {"rules": {"enabled": True, "alerts": {"TandemNotCommitting": {"threshold": 60}}}}
    assert installed(given)["TandemNotCommitting"]["expr"].endswith("> 60")


@pytest.mark.parametrize("monitor", ["serviceMonitor", "podMonitor"])
def test_pairs_of_one_name_in_two_namespaces(monitor: str) -> None:
    """What the chart's own monitors scrape carries the namespace, so the rules ask for theirs."""
    found = installed({"rules": {"enabled": True}, monitor: {"enabled": True}})
    assert found["TandemNoCompleteBackup"]["expr"] == 'max(tandem_restorable{pair="orders", namespace="default"}) == 0'


def test_nothing_of_it_is_there_by_default() -> None:
    """The custom resources need the operator."""
    kinds = [document["kind"] for document in rendered({})]
    assert not {"PrometheusRule", "ServiceMonitor", "PodMonitor"} & set(kinds)
    assert kinds.count("ConfigMap") == 1


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor"])
def test_monitors_find_both_instances(kind: str) -> None:
    """Through the Service of metrics, or by the pods: the labels and the port are those of the pods."""
    section = kind[0].lower() + kind[1:]
    documents = rendered({section: {"enabled": True, "labels": {"release": "prom"}, "interval": "15s"}})
    (monitor,) = [document for document in documents if document["kind"] == kind]
    (pods,) = [document["spec"]["template"] for document in documents if document["kind"] == "StatefulSet"]
    ports = [port["name"] for container in pods["spec"]["containers"] for port in container["ports"]]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    (endpoint,) = monitor["spec"]["endpoints" if kind == "ServiceMonitor" else "podMetricsEndpoints"]
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "15s")
    assert monitor["metadata"]["labels"]["release"] == "prom"
    labels = pods["metadata"]["labels"]
    if kind == "ServiceMonitor":
        (service,) = [
            document
            for document in documents
            if document["kind"] == "Service" and wanted.items() <= document["metadata"]["labels"].items()
        ]
        (port,) = service["spec"]["ports"]
        assert (port["name"], port["targetPort"] in ports) == (endpoint["port"], True)
        assert service["spec"]["publishNotReadyAddresses"] is True
        wanted = service["spec"]["selector"]
    else:
        assert endpoint["port"] in ports
    assert wanted.items() <= labels.items()


def test_the_dashboard_is_for_the_sidecar() -> None:
    """Valid JSON in a ConfigMap with the label that Grafana's sidecar looks for."""
    found = [d for d in rendered({"dashboard": {"enabled": True}}) if d["metadata"]["name"].endswith("-dashboard")]
    assert found[0]["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found[0]["data"]["tandem.json"])["title"] == "Tandem"
    assert "annotations" not in found[0]["metadata"]


def test_the_dashboard_has_a_folder() -> None:
    """As the annotation that the sidecar of Grafana's chart is told to read, beside others."""
    values = {"enabled": True, "folder": "Kafka", "annotations": {"team": "data"}}
    (found,) = [d for d in rendered({"dashboard": values}) if d["metadata"]["name"].endswith("-dashboard")]
    assert found["metadata"]["annotations"] == {"grafana_folder": "Kafka", "team": "data"}
    other = {"dashboard": {**values, "folderAnnotation": "k8s-sidecar-target-directory"}}
    (found,) = [d for d in rendered(other) if d["metadata"]["name"].endswith("-dashboard")]
    assert found["metadata"]["annotations"] == {"k8s-sidecar-target-directory": "Kafka", "team": "data"}


def test_every_panel_of_the_dashboard_has_something_to_show(tmp_path: Path) -> None:
    """With two simulated instances in the middle of their life, whose commits are counted, and with a job's results."""
    panels = json.loads((CHART / "files" / "dashboard.json").read_text())["panels"]
    asked = [
        target["expr"].replace("$__rate_interval", "10s").replace("$pair", PAIR)
        for panel in panels
        for target in panel.get("targets", ())
    ]
    assert len(asked) > 30
    told = play("turns")
    shown(tmp_path, History(**told["history"]), asked, at=told["history"]["ticks"] - 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rules": {"alerts": {"TandemLagg": {"for": "1m"}}}},
        {"rules": {"alerts": {"TandemLag": {"treshold": 1}}}},
        {"rules": {"alerts": {"TandemLag": {"for": "soon"}}}},
        {"serviceMonitor": {"intervall": "1m"}},
        {"dashbord": {}},
    ],
)
def test_misspelt_values_are_refused(wrong: dict[str, Any]) -> None:
    """Rather than being without the alert that somebody thinks is set."""
    with pytest.raises(AssertionError, match="values don't meet the specifications"):
        rendered(wrong)


def test_both_monitors_are_refused() -> None:
    """Everything would be there twice."""
    with pytest.raises(AssertionError, match="take one of the two"):
        rendered({"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}})


def test_auto_needs_a_job_to_follow() -> None:
    """For any other alert it would silently switch it off."""
    with pytest.raises(AssertionError, match="auto follows a job, and this alert is about none"):
        rendered({"rules": {"enabled": True, "alerts": {"TandemLag": {"enabled": "auto"}}}})
