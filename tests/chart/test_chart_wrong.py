"""Wrong values are refused before anything is installed, by a message that names the place (`make chart-test`)."""

from __future__ import annotations

from typing import Any

import pytest

from chart.matrix import CONFIG, pair, single
from chart.rendering import merged, template

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no pairs": ({"pairs": []}, "/pairs"),
    "a pair without a name": ({"pairs": [{"config": CONFIG}]}, "at '/pairs/0': missing property 'name'"),
    "a name that is none": (single(name="a/b"), "/pairs/0/name"),
    "the same name twice": ({"pairs": [pair(), pair()]}, "pairs[1] (orders): name: pairs[0] (orders) has it already"),
    "an unknown key": (single(antiAfinity="soft"), "additional properties 'antiAfinity' not allowed"),
    "the values of the first chart": ({**single(), "config": CONFIG}, "additional properties 'config' not allowed"),
    "an unknown key of the configuration": (single(config={"rotatoin": {}}), "additional properties 'rotatoin'"),
    "an unknown key of a section": (single(config={"flush": {"intervall": "60s"}}), "at '/pairs/0/config/flush'"),
    "a wrong value in defaults": ({**single(), "defaults": {"antiAffinity": "strong"}}, "at '/defaults/antiAffinity'"),
    "a name in defaults": ({**single(), "defaults": {"name": "x"}}, "at '/defaults'"),
    "a duration without text": (single(config={"flush": {"interval": 60}}), "at '/pairs/0/config/flush/interval'"),
    "no duration": (single(config={"rotation": {"interval": "weekly"}}), "at '/pairs/0/config/rotation/interval'"),
    "no size": (single(config={"memory": {"budget": "160 megs"}}), "at '/pairs/0/config/memory/budget'"),
    "too many objects": (single(config={"commit": {"max_objects": 5000}}), "at '/pairs/0/config/commit/max_objects'"),
    "an unknown codec": (single(config={"object": {"codec": "lzo"}}), "at '/pairs/0/config/object/codec'"),
    "a folder of one pod": (single(config={"store": {"root": "/tmp/x"}}), "at '/pairs/0/config/store/root'"),
    "two folders of the state": (
        single(stateVolume={"enabled": True}, config={"state": {"dir": "/tmp/state"}}),
        "pairs[0] (orders): stateVolume.enabled: config.state.dir, or env.TANDEM_STATE__DIR, names a folder already",
    ),
    "a volume that can only be read": (
        single(stateVolume={"accessModes": ["ReadOnlyMany"]}),
        "at '/pairs/0/stateVolume/accessModes/0'",
    ),
    "no topics": (
        {"pairs": [{"name": "orders", "config": merged(CONFIG, {"topics": {"include": []}})}]},
        "pairs[0] (orders): config.topics: guards nothing",
    ),
    "no brokers": (
        single(config={"kafka": {"bootstrap.servers": None}}),
        "pairs[0] (orders): config.kafka.bootstrap.servers: required",
    ),
    "no store": (single(config={"store": {"root": None}}), "pairs[0] (orders): config.store.root: required"),
    "a preset that is none": (
        single(config={"topics": {"presets": ["streems"]}}),
        "at '/pairs/0/config/topics/presets",
    ),
    "a secret key": (
        single(config={"store": {"secret_access_key": "s3cr3t"}}),
        "at '/pairs/0/config/store/secret_access_key': value must be 'left out: a secret belongs into secretEnv",
    ),
    "a password": (single(config={"kafka": {"sasl.password": "s3cr3t"}}), "at '/pairs/0/config/kafka/sasl.password'"),
    "what the chart sets": (
        single(config={"instance": "a"}),
        "at '/pairs/0/config/instance': value must be 'left out: the pod\\'s name says which it is'",
    ),
    "what Tandem sets": (single(config={"kafka": {"group.id": "x"}}), "at '/pairs/0/config/kafka/group.id'"),
    "a secret in plain sight": (
        single(env={"AWS_SECRET_ACCESS_KEY": "s3cr3t"}),
        "at '/pairs/0/env/AWS_SECRET_ACCESS_KEY': value must be 'left out: a secret belongs into secretEnv'",
    ),
    "a misspelt variable": (single(env={"TANDEM_FLUSH_INTERVAL": "60s"}), "'TANDEM_FLUSH_INTERVAL' not allowed"),
    "a misspelt variable of a secret": (
        single(secretEnv={"TANDEM_STORE_SECRET_ACCESS_KEY": {"secret": "a", "key": "b"}}),
        "'TANDEM_STORE_SECRET_ACCESS_KEY' not allowed",
    ),
    "a secret without its key": (
        single(secretEnv={"AWS_SESSION_TOKEN": {"secret": "a"}}),
        "at '/pairs/0/secretEnv/AWS_SESSION_TOKEN': missing property 'key'",
    ),
    "a variable from two places": (
        single(credentials={"AWS_SESSION_TOKEN": "x"}, secretEnv={"AWS_SESSION_TOKEN": {"secret": "a", "key": "b"}}),
        "pairs[0] (orders): credentials.AWS_SESSION_TOKEN: is in secretEnv as well",
    ),
    "a file from two places": (single(files={"ca": {"secret": "a", "configMap": "b"}}), "at '/pairs/0/files/ca'"),
    "a schedule that is none": (single(verify={"schedule": "daily at 3"}), "at '/pairs/0/verify/schedule'"),
    "an unknown key of a job": (single(retention={"shedule": "0 3 * * *"}), "additional properties 'shedule'"),
    "a share that is none": (single(verify={"sample": "five"}), "at '/pairs/0/verify/sample'"),
    "a restore of nothing": (single(restore={"enabled": True}), "pairs[0] (orders): restore.args: required"),
    "a restore of nothing on demand": (single(restore={"onDemand": True}), "pairs[0] (orders): restore.args: required"),
    "a restore on demand by the operator": (
        single(restore={"onDemand": True, "args": ["--yes"]}, spark={"mode": "operator"}),
        "pair orders: restore.onDemand needs spark.mode: local",
    ),
    "a runbook that is no URL": (
        {**single(), "metrics": {"rules": {"enabled": True, "runbookUrl": "docs/alerts.md"}}},
        "at '/metrics/rules/runbookUrl'",
    ),
    "an impatient end": (
        single(config={"shutdown": {"grace": "2m"}}, terminationGracePeriodSeconds=60),
        "terminationGracePeriodSeconds: 60 is less than 5 s longer than config.shutdown.grace (120s)",
    ),
    "a budget that the pod does not hold": (
        single(config={"memory": {"budget": "1GB"}}),
        "pairs[0] (orders): resources.limits.memory: 1Gi leaves less than 128Mi beside config.memory.budget (1GB)",
    ),
    "a budget in bytes": (
        single(config={"memory": {"budget": "160000000"}}, resources={"limits": {"memory": "200M"}}),
        "resources.limits.memory: 200M leaves less than 128Mi beside config.memory.budget (160000000)",
    ),
    "a limit for the default budget": (
        single(resources={"limits": {"memory": "256Mi"}}),
        "resources.limits.memory: 256Mi leaves less than 128Mi beside config.memory.budget (160MiB)",
    ),
    "one account made twice": (
        {"pairs": [pair("one", serviceAccount={"name": "x"}), pair("two", serviceAccount={"name": "x"})]},
        "pairs[1] (two): serviceAccount.name: pairs[0] (one) makes x already",
    ),
    "an account of Spark that another pair makes": (
        {"defaults": {"spark": {"mode": "operator"}}, "pairs": [pair(), pair("orders-spark")]},
        "pairs[1] (orders-spark): serviceAccount.name: pairs[0] (orders) makes acme-tandem-orders-spark already",
    ),
    "an account that another pair makes for Spark": (
        {"defaults": {"spark": {"mode": "operator"}}, "pairs": [pair("orders-spark"), pair()]},
        "pairs[1] (orders): spark.serviceAccount.name: pairs[0] (orders-spark) makes acme-tandem-orders-spark already",
    ),
    "the dashboard's name": (
        {"pairs": [pair(), pair("dashboard")], "metrics": {"dashboard": {"enabled": True}}},
        "pairs[1] (dashboard): name: metrics.dashboard has it already",
    ),
    "no image": ({**single(), "image": {"repository": ""}}, "image.repository: required; where you have pushed"),
    "a digest that is none": ({**single(), "image": {"digest": "latest"}}, "at '/image/digest'"),
    "a port that is none": (single(networkPolicy={"kafkaPorts": [99999]}), "at '/pairs/0/networkPolicy/kafkaPorts/0'"),
    "a mode that is none": (single(spark={"mode": "yarn"}), "at '/pairs/0/spark/mode'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused_by_name(name: str) -> None:
    """The place is named, and no secret is repeated."""
    values, said = WRONG[name]
    done = template(values)
    assert done.returncode != 0
    assert said in done.stderr
    assert "s3cr3t" not in done.stdout + done.stderr
