"""What helm makes of many sets of values (`make chart-test`)."""

from __future__ import annotations

import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from chart.matrix import CONFIG, FULL, KEPT, MATRIX, OPERATOR, TRY_OUT, pair, single
from chart.rendering import (
    CHART,
    GOLDEN,
    VERSIONS,
    container,
    helm,
    merged,
    of_kind,
    one,
    pod_templates,
    pods,
    render,
    rendered,
)
from chart.restricted import violations
from supply_chain import release, wheel
from tandem.controller.config import load

DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.fixture(scope="module", params=MATRIX)
def named(request: pytest.FixtureRequest) -> tuple[str, list[dict[str, Any]]]:
    """Each set of values with its objects, rendered once for the oldest version."""
    return request.param, render(MATRIX[request.param])


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_fits_the_schemas_of_kubernetes(named: tuple[str, list[dict[str, Any]]], version: str) -> None:
    """No unknown field, no wrong type, in any combination of values and on each version."""
    for document in named[1]:
        if not document["apiVersion"].startswith("sparkoperator."):
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_newer_versions_are_served_the_same(version: str) -> None:
    """Nothing in the chart asks for the version, so what is checked for one is there on all."""
    assert rendered(FULL, version=version) == rendered(FULL)


def test_pods_are_restricted(named: tuple[str, list[dict[str, Any]]]) -> None:
    """Every pod that any of the objects makes satisfies the Pod Security Standard "restricted"."""
    found = list(pods(named[1]))
    assert len(found) >= 1
    assert {place: violations(pod) for place, pod in found if violations(pod)} == {}


def test_only_drivers_have_a_token(named: tuple[str, list[dict[str, Any]]]) -> None:
    """Nobody but a Spark driver talks to the cluster's API."""
    for place, pod in pods(named[1]):
        assert pod["automountServiceAccountToken"] is place.endswith("/driver"), place


def test_names_fit(named: tuple[str, list[dict[str, Any]]]) -> None:
    """What Kubernetes appends to names of StatefulSets and CronJobs fits as well; no two of a kind share one."""
    seen = set()
    for document in named[1]:
        name = document["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name), name
        most = {"StatefulSet": 52, "CronJob": 52, "ScheduledSparkApplication": 43}
        assert len(name) <= most.get(document["kind"], 63), name
        assert (document["kind"], name) not in seen
        seen.add((document["kind"], name))


def test_selectors_find_their_pods(named: tuple[str, list[dict[str, Any]]]) -> None:
    """StatefulSet, Service, budget and policy of a pair select that pair's instances and no other's."""
    for stateful_set in of_kind(named[1], "StatefulSet"):
        labels = stateful_set["spec"]["template"]["metadata"]["labels"]
        selectors = {
            f"{document['kind']}/{document['metadata']['name']}": selector
            for document in named[1]
            for selector in [_selector(document)]
            if selector and selector.items() <= labels.items()
        }
        name = stateful_set["metadata"]["name"]
        assert {f"StatefulSet/{name}", f"Service/{name}"} <= set(selectors)
        assert {place.partition("/")[2] for place in selectors} == {name}


def _selector(document: dict[str, Any]) -> dict[str, str]:
    spec = document.get("spec", {})
    found = spec.get("podSelector") or spec.get("selector") or {}
    return dict(found.get("matchLabels", found))


def test_the_rendered_configuration_is_one(named: tuple[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    """The program itself accepts the file, and the pod's name says which instance it is."""
    name, documents = named
    values = MATRIX[name]
    for number, (config_map, stateful_set) in enumerate(
        zip(of_kind(documents, "ConfigMap"), of_kind(documents, "StatefulSet"), strict=True)
    ):
        path = tmp_path / f"{number}.yaml"
        # A secret that comes from a mounted file is not here; its place is the pod's.
        path.write_text(config_map["data"]["tandem.yaml"])
        for ordinal, instance in enumerate("ab"):
            host = f"{stateful_set['metadata']['name']}-{ordinal}"
            config = load(path, {}, hostname=lambda host=host: host)
            assert (config.instance, config.http.listen) == (instance, ":8080")
        assert config.pair in {item["name"] for item in values["pairs"]}
        assert config.pair == stateful_set["metadata"]["annotations"]["tandem/pair-name"]


@pytest.mark.parametrize("name", KEPT)
def test_the_golden_rendering_is_what_helm_makes_of_it(name: str) -> None:
    """A change of the chart shows in the diff of a review; `make chart-golden` writes it."""
    assert rendered(MATRIX[name]) == (GOLDEN / f"{name}.yaml").read_text()


def test_names_do_not_depend_on_the_order() -> None:
    """A pair that is put first, or taken out, leaves the others' objects as they are."""
    first, second, third = (pair(name) for name in ("one", "two", "three"))
    before = {_key(document): document for document in render({"pairs": [first, second]})}
    after = {_key(document): document for document in render({"pairs": [third, second, first]})}
    assert {key: after[key] for key in before} == before


def _key(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def test_names_that_look_alike_stay_apart() -> None:
    """What Kubernetes' names can't tell apart is told apart by a hash."""
    names = ["a.b", "a_b", "A-b", "a-b", "x" * 60, "x" * 61]
    found = [each["metadata"]["name"] for each in of_kind(render({"pairs": [pair(n) for n in names]}), "StatefulSet")]
    assert len(set(found)) == len(names)
    assert "acme-tandem-a-b" in found


def test_a_pair_is_two_pods_that_start_together() -> None:
    """Never one, never three; a change of configuration is a new revision, another pair's is none."""
    plain, changed = (
        of_kind(render({"pairs": [pair("one", config={"flush": {"interval": i}}), pair("two")]}), "StatefulSet")
        for i in ("30s", "40s")
    )
    assert plain[0]["spec"]["replicas"] == 2
    assert plain[0]["spec"]["podManagementPolicy"] == "Parallel"
    assert plain[0]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert plain[0] != changed[0]
    assert plain[1] == changed[1]


def test_a_new_version_of_the_chart_restarts_nothing() -> None:
    """No label of a pod holds the chart's or the program's version; the image does."""
    labels = one(render(single()), "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    assert not [label for label in labels.values() if version in label]


def test_a_start_is_waited_for() -> None:
    """No probe fails while the process starts, and a slow start is no reason to kill it for minutes."""
    probe = container(one(render(single()), "StatefulSet")["spec"]["template"]["spec"])["startupProbe"]
    assert probe["httpGet"]["path"] == "/livez"
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 120


def test_ready_is_no_question_of_the_role() -> None:
    """A Passive instance is as ready as an Active one; else no rollout would ever end."""
    probe = container(one(render(single()), "StatefulSet")["spec"]["template"]["spec"])["readinessProbe"]
    assert probe["httpGet"]["path"] == "/readyz"


def test_what_a_pair_says_wins_over_the_defaults() -> None:
    """Maps are merged, lists are replaced, false and empty text count, null takes out."""
    values = {
        "defaults": {
            "config": {**CONFIG, "groups": {"enabled": True}, "log": {"level": "debug"}},
            "tolerations": [{"operator": "Exists"}],
            "podDisruptionBudget": {"enabled": True},
            "priorityClassName": "high",
        },
        "pairs": [
            {
                "name": "one",
                "config": {"topics": {"include": ["a"]}, "groups": {"enabled": False}, "log": {"level": None}},
                "tolerations": [],
                "podDisruptionBudget": {"enabled": False},
                "priorityClassName": "",
            },
            {"name": "two"},
        ],
    }
    documents = render(values)
    config = [yaml.safe_load(each["data"]["tandem.yaml"]) for each in of_kind(documents, "ConfigMap")]
    assert [each["topics"] for each in config] == [{"include": ["a"]}, {"include": ["customers"]}]
    assert [each["groups"]["enabled"] for each in config] == [False, True]
    assert [each["log"] for each in config] == [{"format": "json"}, {"format": "json", "level": "debug"}]
    pod = [each["spec"]["template"]["spec"] for each in of_kind(documents, "StatefulSet")]
    assert ["tolerations" in each for each in pod] == [False, True]
    assert [each.get("priorityClassName") for each in pod] == [None, "high"]
    assert [each["metadata"]["name"] for each in of_kind(documents, "PodDisruptionBudget")] == ["acme-tandem-two"]


@pytest.mark.parametrize(
    ("name", "when", "own"), [("operator", "preferred", "weight"), ("own-anti-affinity", "required", "labelSelector")]
)
def test_terms_of_the_values_stand_beside_the_charts_own(name: str, when: str, own: str) -> None:
    """The two instances keep apart from each other, and from what the values name."""
    pod = one(render(MATRIX[name]), "StatefulSet")["spec"]["template"]["spec"]
    key = f"{when}DuringSchedulingIgnoredDuringExecution"
    first, *others = pod["affinity"]["podAntiAffinity"][key]
    assert own in first
    assert "acme-tandem-orders" in str(first)
    assert others == MATRIX[name]["pairs"][0]["affinity"]["podAntiAffinity"][key]


def test_large_numbers_stay_whole() -> None:
    """Helm keeps numbers as floats; none of them may get an exponent on its way."""
    (config_map,) = [c for c in of_kind(render(FULL), "ConfigMap") if c["metadata"]["name"].endswith("orders")]
    assert yaml.safe_load(config_map["data"]["tandem.yaml"])["kafka"]["message.max.bytes"] == 104857600


def test_numbers_of_variables_stay_whole() -> None:
    """And so do those of Spark's settings; fractions and truths are as they were written."""
    env = {"TANDEM_SCAN__RATE_LIMIT": 104857600, "OTHER": 0.25, "SWITCH": True, "TEXT": "0123"}
    pod = one(render(single(env=env)), "StatefulSet")["spec"]["template"]["spec"]
    found = {each["name"]: each.get("value") for each in container(pod)["env"]}
    assert found.items() >= {
        ("TANDEM_SCAN__RATE_LIMIT", "104857600"),
        ("OTHER", "0.25"),
        ("SWITCH", "true"),
        ("TEXT", "0123"),
    }
    spark = {"mode": "operator", "conf": {"spark.network.maxRemoteBlockSizeFetchToMem": 200000000}}
    for document in of_kind(render(single(spark=spark)), "ScheduledSparkApplication"):
        conf = document["spec"]["template"]["sparkConf"]
        assert conf["spark.network.maxRemoteBlockSizeFetchToMem"] == "200000000"


@pytest.mark.parametrize("name", ["o", "orders", "a-pair-of-some-length", "x" * 39, "y" * 60])
def test_names_of_runs_fit_into_a_label(name: str) -> None:
    """The operator calls a run by what is scheduled and a time in nanoseconds; no two jobs share a name."""
    values = single(spark={"mode": "operator"}, drill={"enabled": True})
    pairs = [values["pairs"][0] | {"name": name}, values["pairs"][0] | {"name": f"{name}z"}]
    names = [
        each["metadata"]["name"] for each in of_kind(render(values | {"pairs": pairs}), "ScheduledSparkApplication")
    ]
    assert len(set(names)) == len(names) == 6
    assert all(len(f"{one_}-1730000000000000000") <= 63 for one_ in names)
    assert {one_.rpartition("-")[2] for one_ in names} == {"retention", "verify", "drill"}


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("https://minio.tenant.svc:9000", 9000),
        ("https://gateway:8443/s3", 8443),
        ("http://gateway/s3", 80),
        ("https://gateway/", 443),
        ("http://[2001:db8::1]:9000/", 9000),
    ],
)
def test_the_port_of_a_store_is_let_through(url: str, port: int) -> None:
    """Wherever in the address it stands."""
    store = CONFIG["store"] | {"endpoint_url": url}
    values = single(networkPolicy={"enabled": True}, config=CONFIG | {"store": store})
    egress = one(render(values), "NetworkPolicy")["spec"]["egress"]
    assert [each["port"] for each in egress[2]["ports"]] == [port]


def test_secrets_come_from_secrets() -> None:
    """All pods of a pair refer to the Secret; nothing of it is in the configuration; files are there for both."""
    documents = render(FULL)
    for place, pod in pods(documents):
        (variable,) = [v for v in container(pod)["env"] if v["name"] == "TANDEM_KAFKA__SASL_PASSWORD"]
        assert variable["valueFrom"]["secretKeyRef"] == {"name": "kafka-tandem", "key": "password"}, place
        (mount,) = [m for m in container(pod)["volumeMounts"] if m["name"] == "file-kafka-ca"]
        assert mount == {"name": "file-kafka-ca", "mountPath": "/run/secrets/tandem/kafka-ca", "readOnly": True}
    assert of_kind(documents, "Secret") == []
    assert "password" not in "".join(each["data"]["tandem.yaml"] for each in of_kind(documents, "ConfigMap"))


@pytest.mark.parametrize("name", ["gke", "aks", "aks-operator"])
def test_the_clouds_identity_reaches_every_pod(name: str) -> None:
    """Instances, jobs, drivers and executors: an account with the annotation, the label on AKS, no key."""
    documents = render(MATRIX[name])
    asked = merged(MATRIX[name].get("defaults", {}), MATRIX[name]["pairs"][0])
    annotations = asked["serviceAccount"]["annotations"]
    accounts = {
        each["metadata"]["name"]: each["metadata"]["annotations"] for each in of_kind(documents, "ServiceAccount")
    }
    found = list(pod_templates(documents))
    assert {place.partition("/")[0] for place, _ in found} > {"StatefulSet", "Pod"}
    for place, made in found:
        account = accounts[_account(documents, place, made)]
        assert annotations.items() <= account.items(), place
        assert asked.get("podLabels", {}).items() <= made["metadata"]["labels"].items(), place
        assert not [v for v in container(made["spec"])["env"] if "SECRET" in v["name"] or "ACCESS_KEY" in v["name"]]
    assert of_kind(documents, "Secret") == []


def _account(documents: list[dict[str, Any]], place: str, template: dict[str, Any]) -> str:
    """Return the name of a pod's account: that of drivers and executors stands in the operator's own field."""
    kind, _, name = place.partition("/")
    if not kind.endswith("SparkApplication"):
        return str(template["spec"]["serviceAccountName"])
    name, _, part = name.partition("/")
    (document,) = [each for each in of_kind(documents, kind) if each["metadata"]["name"] == name]
    application = document["spec"]["template"] if kind.startswith("Scheduled") else document["spec"]
    return str(application[part]["serviceAccount"])


def test_a_volume_for_the_heads_is_each_instances_own() -> None:
    """Off by default; jobs, which read the same configuration, neither mount it nor are told of it."""
    assert "volumeClaimTemplates" not in one(render(single()), "StatefulSet")["spec"]
    documents = render(single(stateVolume={"enabled": True, "size": "2Gi", "accessModes": ["ReadWriteOncePod"]}))
    spec = one(documents, "StatefulSet")["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"] == {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "2Gi"}}}
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    for place, pod in pods(documents):
        mounts = [m["mountPath"] for m in container(pod)["volumeMounts"] if m["name"] == claim["metadata"]["name"]]
        folders = [v["value"] for v in container(pod)["env"] if v["name"] == "TANDEM_STATE__DIR"]
        if place.startswith("StatefulSet/"):
            assert [folder.rpartition("/")[0] for folder in folders] == mounts != []
        else:
            assert (mounts, folders) == ([], []), place


@pytest.mark.parametrize(
    ("own", "image"),
    [
        ({"instanceTag": "1-slim"}, "r.example/tandem:1-slim"),
        ({"instanceTag": "1-slim", "instanceDigest": DIGEST}, f"r.example/tandem@{DIGEST}"),
        ({}, "r.example/tandem:1"),
    ],
)
def test_instances_may_have_an_image_of_their_own(own: dict[str, str], image: str) -> None:
    """Without Spark; all other pods have that of the release, also where it is named by its digest."""
    documents = render(single() | {"image": {"repository": "r.example/tandem", "tag": "1"} | own})
    found = {place: container(pod)["image"] for place, pod in pods(documents)}
    assert {each for place, each in found.items() if place.startswith("StatefulSet/")} == {image}
    assert {each for place, each in found.items() if not place.startswith("StatefulSet/")} == {"r.example/tandem:1"}
    pinned = render(single() | {"image": {"repository": "r.example/tandem", "digest": DIGEST, "instanceTag": "1-slim"}})
    images = {container(pod)["image"] for _, pod in pods(pinned)}
    assert images == {"r.example/tandem:1-slim", f"r.example/tandem@{DIGEST}"}


def test_credentials_of_a_try_out_are_a_secret_and_a_new_revision_when_they_change() -> None:
    """They are in no other object, not even by their hash's input; the notes warn."""
    changed = single(credentials={**TRY_OUT["pairs"][0]["credentials"], "TANDEM_STORE__ACCESS_KEY_ID": "other"})
    documents = render(TRY_OUT)
    secret = one(documents, "Secret")
    assert secret["stringData"]["TANDEM_STORE__SECRET_ACCESS_KEY"] == "only-a-sandbox"
    assert "only-a-sandbox" not in str([each for each in documents if each["kind"] != "Secret"])
    sums = [
        one(each, "StatefulSet")["spec"]["template"]["metadata"]["annotations"]["checksum/credentials"]
        for each in (documents, render(changed))
    ]
    assert sums[0] != sums[1]


def test_jobs_do_by_default_what_does_no_harm() -> None:
    """Retention only plans, verify reads a sample, and nothing writes to the cluster."""
    documents = render(single())
    arguments = {
        place.removeprefix("CronJob/acme-tandem-orders-"): container(pod)["args"]
        for place, pod in pods(documents)
        if place.startswith("CronJob/")
    }
    assert arguments == {
        "retention": ["retention", "--master", "local[2,4]"],
        "verify": ["verify", "--sample", "5%", "--master", "local[2,4]"],
    }


def test_jobs_get_their_arguments() -> None:
    """Each option of the values becomes the command's, extra ones come last."""
    arguments = {p.partition("-orders-")[2]: container(pod)["args"] for p, pod in pods(render(FULL)) if "-orders-" in p}
    assert arguments["retention"] == ["retention", "--execute", "--horizon", "7d", "--master", "local[4,4]"]
    drill = ["drill", "--topics", "customers", "--master", "local[2,4]", "--replication-factor", "1"]
    assert arguments["drill"] == drill
    assert arguments["check"] == ["check", "--connections", "--timeout", "60"]


def test_jobs_of_many_pairs_do_not_start_at_once() -> None:
    """The H of a schedule is another minute for each name, and the same one whenever it is rendered."""
    schedules = [each["spec"]["schedule"] for each in of_kind(render(MATRIX["many"]), "CronJob")]
    assert all(re.fullmatch(r"([0-9]|[1-5][0-9]) [0-9]+ \* \* \*", schedule) for schedule in schedules)
    assert len(set(schedules)) > len(schedules) // 2


def test_a_restore_has_a_name_per_revision() -> None:
    """A Job can't be changed: each upgrade makes a new one."""
    plain = one(render(MATRIX["restore"]), "Job")
    assert plain["metadata"]["name"] == "acme-tandem-orders-restore-1"
    assert plain["spec"]["ttlSecondsAfterFinished"] > 0
    pod = plain["spec"]["template"]["spec"]
    assert container(pod)["args"] == ["restore", "--suffix", ".restored", "--master", "local[2,4]"]


@pytest.mark.parametrize("mode", ["local", "operator"])
def test_a_restore_with_an_id_is_made_once(mode: str) -> None:
    """An upgrade that changes nothing of it leaves it alone, one that does makes another: it can't be changed."""

    def named(**more: object) -> tuple[str, dict[str, Any]]:
        values = single(spark={"mode": mode}, restore={"enabled": True, "id": "may", "args": ["--suffix", ".x"]} | more)
        found = one(render(values), "Job" if mode == "local" else "SparkApplication")
        return found["metadata"]["name"], found["spec"]

    name, spec = named()
    assert re.fullmatch("acme-tandem-orders-restore-may-[0-9a-f]{5}", name)
    assert named() == (name, spec)
    assert named(args=["--suffix", ".y"])[0] != name
    assert not {"ttlSecondsAfterFinished", "timeToLiveSeconds"} & spec.keys()  # gone, an upgrade would make it anew


def test_a_restore_on_demand_never_runs_by_itself() -> None:
    """A suspended CronJob, from which `kubectl create job` takes the very Job that an upgrade would make."""
    values = {"args": ["--suffix", ".restored"]}
    documents = render(single(restore={"onDemand": True, **values}))
    assert of_kind(documents, "Job") == []
    (found,) = [one for one in of_kind(documents, "CronJob") if one["metadata"]["name"].endswith("-restore")]
    assert found["spec"]["suspend"] is True
    job = one(render(single(restore={"enabled": True, **values})), "Job")
    assert found["spec"]["jobTemplate"]["spec"] == job["spec"]


@pytest.mark.parametrize("mode", ["local", "operator"])
def test_files_of_a_job_are_not_those_of_instances(mode: str) -> None:
    """A restore gets its target's credentials; no instance mounts them, nor is it restarted for them."""
    target = {
        "files": {"target": {"secret": "target-cluster"}},
        "secretEnv": {"AWS_SESSION_TOKEN": {"secret": "target-cluster", "key": "token"}},
    }
    shared = {"spark": {"mode": mode}, "files": {"kafka-ca": {"secret": "kafka-ca"}}}
    plain = {"enabled": True, "args": ["--suffix", ".restored"]}
    documents, before = (render(single(**shared, restore=restore)) for restore in (plain | target, plain))
    assert one(documents, "StatefulSet") == one(before, "StatefulSet")
    kind = "Job" if mode == "local" else "SparkApplication"
    with_target = [name for name, pod in pods(documents) if "file-target" in {each["name"] for each in pod["volumes"]}]
    assert with_target
    assert all(name.startswith(kind) for name in with_target), with_target
    for _, pod in pods([one(documents, kind)]):
        (found,) = pod["containers"]
        mounts = {each["name"]: each["mountPath"] for each in found["volumeMounts"]}
        assert mounts["file-target"] == "/run/secrets/tandem/target"
        assert mounts["file-kafka-ca"] == "/run/secrets/tandem/kafka-ca"
        assert "AWS_SESSION_TOKEN" in {each["name"] for each in found["env"]}


def test_files_of_all_jobs_are_in_each() -> None:
    """`jobs` has what they share, and a job may take one out."""
    shared = {"files": {"bundle": {"configMap": "company-ca"}}}
    documents = render(single(jobs=shared, verify={"files": {"bundle": None}}, drill={"enabled": True}))
    mounting = {name for name, pod in pods(documents) if "file-bundle" in {each["name"] for each in pod["volumes"]}}
    assert {name.rpartition("-")[2] for name in mounting} == {"retention", "drill"}


def test_the_version_of_spark_is_that_of_the_image() -> None:
    """The operator's objects name it."""
    lock = (CHART.parents[1] / "requirements" / "runtime.lock").read_text()
    (locked,) = re.findall(r"^pyspark==(\S+)", lock, re.MULTILINE)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["defaults"]["spark"]["version"] == locked


def test_names_of_restores_fit() -> None:
    """Whatever the names of release and pair are: pods are found by a label with the Job's name."""
    values = single(
        name="a-pair-whose-name-has-no-end-that-anybody-has-ever-seen",
        restore={"enabled": True, "id": "z" * 12, "args": ["--yes"]},
    )
    name = one(render(values), "Job")["metadata"]["name"]
    assert len(name) <= 63
    assert re.fullmatch("[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)


def test_the_network_policy_lets_out_what_the_configuration_names() -> None:
    """Ports of brokers and store come from the configuration; nobody gets in unless he is named."""
    policy = one(render(TRY_OUT), "NetworkPolicy")["spec"]
    assert policy["ingress"] == []
    assert [[port["port"] for port in rule["ports"]] for rule in policy["egress"]] == [
        [53, 53, 5353, 5353],
        [9092],
        [8333],
    ]
    full = of_kind(render(FULL), "NetworkPolicy")[0]["spec"]
    ports = [[port["port"] for port in rule["ports"]] for rule in full["egress"]]
    assert ports == [[53, 53, 5353, 5353], [9094], [443], [80]]
    assert full["ingress"][0]["from"][0]["namespaceSelector"]
    assert full["ingress"][0]["ports"] == [{"port": "http"}]


def test_operator_mode_makes_no_job() -> None:
    """All Spark jobs are the operator's; drivers may make pods, executors may not; both have the pair's files."""
    documents = render(OPERATOR)
    kinds = {document["kind"] for document in documents}
    assert {"ScheduledSparkApplication", "SparkApplication", "Role", "RoleBinding"} <= kinds
    assert not {"CronJob", "Job"} & kinds
    application = one(documents, "SparkApplication")["spec"]
    assert application["arguments"][-2:] == ["--master", "k8s://https://kubernetes.default.svc"]
    assert application["driver"]["serviceAccount"] == "acme-tandem-orders-spark"
    assert application["executor"]["serviceAccount"] == "acme-tandem-orders"
    for part in ("driver", "executor"):
        template = application[part]["template"]
        assert "file-kafka-ca" in str(template["spec"]["volumes"])
        assert template["metadata"]["annotations"] == OPERATOR["pairs"][0]["podAnnotations"]
        assert template["spec"]["affinity"] == OPERATOR["pairs"][0]["affinity"]
    accounts = of_kind(documents, "ServiceAccount")
    assert all("iam.gke.io/gcp-service-account" in each["metadata"]["annotations"] for each in accounts)


# The fields of the operator's objects that the chart uses, after the operator's CRDs (v1beta2). `template` of driver
# and executor is a pod template, whose content the other tests look at.
_SPARK_POD = {"cores", "memory", "memoryOverhead", "coreLimit", "serviceAccount", "template", "instances"}
_APPLICATION = {
    *("type", "pythonVersion", "mode", "sparkVersion", "image", "imagePullPolicy", "imagePullSecrets", "arguments"),
    *("mainApplicationFile", "timeToLiveSeconds", "restartPolicy", "sparkConf", "driver", "executor"),
}
_SCHEDULED = {
    *("schedule", "timeZone", "suspend", "concurrencyPolicy", "template"),
    *("successfulRunHistoryLimit", "failedRunHistoryLimit"),
}


def test_the_operators_objects_have_the_fields_of_its_crds() -> None:
    """No field that the operator does not know."""
    documents = render(OPERATOR)
    scheduled = of_kind(documents, "ScheduledSparkApplication")
    assert len(scheduled) == 2
    for document in scheduled:
        assert set(document["spec"]) <= _SCHEDULED
    for application in [one(documents, "SparkApplication")["spec"], *(each["spec"]["template"] for each in scheduled)]:
        assert set(application) <= _APPLICATION
        assert set(application["driver"]) <= _SPARK_POD - {"instances"}
        assert set(application["executor"]) <= _SPARK_POD
        assert all(isinstance(value, str) for value in application["sparkConf"].values())


def notes(values: dict[str, Any], folder: Path) -> str:
    """Return what helm would say after an installation: it shows notes only to whoever has a cluster."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    text = (chart / "templates" / "NOTES.txt").read_text()
    wrapped = '{{- define "notes" -}}' + text + '{{- end -}}\nnotes: {{ include "notes" . | toJson }}\n'
    (chart / "templates" / "notes.yaml").write_text(wrapped)
    words = ("--namespace", "backup", "--kube-version", "1.31.0", "--show-only", "templates/notes.yaml")
    done = helm("template", "acme", str(chart), *words, values=values)
    assert done.returncode == 0, done.stderr
    return str(yaml.safe_load(done.stdout)["notes"])


def test_the_notes_have_commands_to_copy(tmp_path: Path) -> None:
    """For each pair, with the namespace and the names of its pods."""
    said = notes(FULL, tmp_path)
    for name in ("acme-tandem-orders", "acme-tandem-connect"):
        assert f"kubectl -n backup exec {name}-0 -- tandem status" in said
        assert f"kubectl -n backup exec -it {name}-0 -- tandem rotate" in said
        assert f"kubectl -n backup logs -l tandem/pair={name}," in said
        assert f"kubectl -n backup port-forward {name}-0 8080, then http://localhost:8080/\n" in said
    assert said.count("An upgrade restarts nothing by itself") == 1  # the other one is RollingUpdate
    assert said.count("Retention only prints its plan") == 1
    assert "WARNING" not in said


def test_the_notes_warn(tmp_path: Path) -> None:
    """Of credentials in values, whose own text they leave out, and of a restore that is still switched on."""
    said = notes(merged(TRY_OUT, {"defaults": {"restore": {"enabled": True, "args": ["--yes"]}}}), tmp_path)
    assert "WARNING: credentials stand in the values" in said
    assert "restore.enabled is set" in said
    assert "only-a-sandbox" not in said


def test_lint() -> None:
    """Helm itself finds nothing."""
    done = helm("lint", str(CHART), "--strict", "--kube-version", "1.31.0", values=FULL)
    assert done.returncode == 0, done.stdout


def test_null_takes_out_what_the_chart_sets() -> None:
    """For all pairs or for one: on a platform that chooses users there must be none."""
    nothing = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}
    for values in (single(**nothing), {**single(), "defaults": nothing}):
        for _, pod in pods(render(values)):
            assert pod["securityContext"].keys() == {"runAsNonRoot", "seccompProfile", "fsGroupChangePolicy"}


def test_the_package_of_the_chart_is_the_same_twice(tmp_path: Path) -> None:
    """As the release script makes it of a commit: twice, and compared; it holds the chart and nothing else."""
    one_, other = (release.chart(tmp_path / name, commit="HEAD") for name in ("one", "other"))
    assert one_.read_bytes() == other.read_bytes()
    with tarfile.open(one_) as archive:
        names = archive.getnames()
    assert {"tandem/Chart.yaml", "tandem/values.schema.json", "tandem/templates/statefulset.yaml"} <= set(names)
    assert all(name.startswith("tandem/") for name in names)


def test_packages_of_the_chart_that_differ_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that has the time of its making in it, say, is no release."""
    made = iter((b"1", b"2"))
    chart_of = release.chart_of

    def changed(sources: bytes, folder: Path, *, at_s: int) -> Path:
        packaged = chart_of(sources, folder, at_s=at_s)
        packaged.write_bytes(packaged.read_bytes() + next(made))
        return packaged

    monkeypatch.setattr(release, "chart_of", changed)
    with pytest.raises(wheel.UnlikeError):
        release.chart(tmp_path, commit="HEAD")
    assert list(tmp_path.iterdir()) == []
