"""Sets of values: what people do with the chart."""

from __future__ import annotations

from typing import Any

from chart.rendering import merged

CONFIG: dict[str, Any] = {
    "topics": {"include": ["customers"]},
    "kafka": {"bootstrap.servers": "kafka:9092"},
    "store": {"root": "s3://bucket/prefix"},
}


def pair(name: str = "orders", **more: Any) -> dict[str, Any]:
    """Return an item of `pairs` that would do as it is, with `more` over it."""
    return merged({"name": name, "config": CONFIG}, more)


def single(**more: Any) -> dict[str, Any]:
    """Return values with one pair."""
    return {"pairs": [pair(**more)]}


SHARED = {
    "kafka": {
        "bootstrap.servers": "b-1.kafka:9094,b-2.kafka:9094",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "tandem",
        "ssl.ca.location": "/run/secrets/tandem/kafka-ca/ca.crt",
        "message.max.bytes": 104857600,
    },
    "store": {"root": "s3://acme-backup/prod", "region": "eu-central-1"},
}

# Two pairs of one company: secrets from Secrets, all jobs, policies, everything that people ask about.
FULL: dict[str, Any] = {
    "image": {"repository": "registry.acme.example/tandem", "digest": f"sha256:{'0123456789abcdef' * 4}"},
    "imagePullSecrets": [{"name": "registry"}],
    "commonLabels": {"team": "data"},
    "defaults": {
        "config": SHARED,
        "env": {"AWS_REGION": "eu-central-1", "TANDEM_LOG__LEVEL": "debug"},
        "secretEnv": {"TANDEM_KAFKA__SASL_PASSWORD": {"secret": "kafka-tandem", "key": "password"}},
        "files": {"kafka-ca": {"secret": "kafka-cluster-ca-cert", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/backup"}},
        "antiAffinity": "hard",
        "priorityClassName": "platform",
        "podLabels": {"sidecar.istio.io/inject": "false"},
        "podAnnotations": {"example.org/owner": "data"},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "backup", "operator": "Exists", "effect": "NoSchedule"}],
        "networkPolicy": {
            "enabled": True,
            "ingressFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "extraEgress": [{"to": [{"ipBlock": {"cidr": "169.254.170.23/32"}}], "ports": [{"port": 80}]}],
        },
        "jobs": {"timeZone": "Europe/Zurich"},
        "drill": {"enabled": True, "topics": ["customers"], "extraArgs": ["--replication-factor", "1"]},
    },
    "pairs": [
        {
            "name": "orders",
            "config": {
                "topics": {"include": ["customers", "_schemas"], "patterns": ["orders\\..*"]},
                "flush": {"interval": "30s"},
            },
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "3Gi"}},
            "retention": {"execute": True, "horizon": "7d", "cores": 4, "resources": {"limits": {"memory": "8Gi"}}},
        },
        {
            "name": "connect",
            "config": {"topics": {"presets": ["connect", "schema-registry"]}, "flush": {"interval": "5m"}},
            "updateStrategy": "RollingUpdate",
            "antiAffinity": "none",
            "verify": {"sample": "", "schedule": "30 2 * * 0"},
            "drill": {"enabled": False},
            "priorityClassName": "",
            "envFromSecrets": ["connect-bucket"],
            "stateVolume": {"enabled": True, "storageClassName": "gp3"},
        },
    ],
}

NOT_BESIDE_KAFKA = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "kafka"}},
}

OPERATOR: dict[str, Any] = single(
    spark={
        "mode": "operator",
        "version": "4.0.1",
        "conf": {"spark.kubernetes.executor.deleteOnTermination": True},
        "executor": {"instances": 8, "memory": "4g"},
    },
    serviceAccount={"annotations": {"iam.gke.io/gcp-service-account": "backup@acme.iam.gserviceaccount.com"}},
    files={"kafka-ca": {"configMap": "ca-bundle"}},
    podAnnotations={"sidecar.istio.io/inject": "false"},
    affinity={
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": NOT_BESIDE_KAFKA}]
        },
    },
    restore={"enabled": True, "id": "may", "args": ["--suffix", ".restored", "--yes"]},
    networkPolicy={"enabled": True},
)

# Against the two servers of `tandem sandbox`, or of compose.yaml: with credentials in the values.
TRY_OUT: dict[str, Any] = single(
    config={
        "kafka": {"bootstrap.servers": "kafka.sandbox:9092"},
        "store": {"root": "s3://tandem/backup", "endpoint_url": "http://s3.sandbox:8333", "addressing_style": "path"},
        "coordination": {"replication_factor": 1},
        "flush": {"interval": "2s"},
    },
    credentials={"TANDEM_STORE__ACCESS_KEY_ID": "sandbox", "TANDEM_STORE__SECRET_ACCESS_KEY": "only-a-sandbox"},
    networkPolicy={"enabled": True},
)

# The identities that GKE and AKS give to pods: an annotation of the account, and on AKS a label of the pods.
GKE = single(serviceAccount={"annotations": {"iam.gke.io/gcp-service-account": "tandem@acme.iam.gserviceaccount.com"}})
AKS = single(
    serviceAccount={"annotations": {"azure.workload.identity/client-id": "00000000-0000-0000-0000-000000000000"}},
    podLabels={"azure.workload.identity/use": "true"},
    restore={"enabled": True, "args": ["--suffix", ".restored", "--yes"]},
)

MATRIX: dict[str, dict[str, Any]] = {
    "plain": single(),
    "full": FULL,
    "operator": OPERATOR,
    "try-out": TRY_OUT,
    "gke": GKE,
    "aks": AKS,
    "aks-operator": merged(AKS, {"defaults": {"spark": {"mode": "operator"}}}),
    "hard-anti-affinity": single(antiAffinity="hard", priorityClassName="high"),
    "own-anti-affinity": single(
        antiAffinity="hard",
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [NOT_BESIDE_KAFKA]}},
    ),
    "no-anti-affinity": single(antiAffinity="none", podDisruptionBudget={"enabled": False}),
    "no-spreading": single(topologySpreadConstraints=[]),
    "own-spreading": single(
        topologySpreadConstraints=[
            {
                "topologyKey": "rack",
                "maxSkew": 1,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"a": "b"}},
            }
        ],
        affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    ),
    "own-account": single(serviceAccount={"create": False, "name": "mine"}),
    "bare-account": single(serviceAccount={"create": False}),
    "rolling": single(updateStrategy="RollingUpdate", terminationGracePeriodSeconds=120),
    "no-jobs": single(retention={"enabled": False}, verify={"enabled": False}, check={"enabled": False}),
    "suspended": single(jobs={"suspend": True, "timeZone": "", "ttlSecondsAfterFinished": 0, "cores": "*"}),
    "restore": single(restore={"enabled": True, "args": ["--suffix", ".restored"]}),
    "restore-on-demand": single(restore={"onDemand": True, "args": ["--suffix", ".restored"]}),
    "volumes": single(
        extraVolumes=[{"name": "keytab", "secret": {"secretName": "keytab"}}],
        extraVolumeMounts=[{"name": "keytab", "mountPath": "/etc/keytab", "readOnly": True}],
        files={"a": {"secret": "a", "optional": True}, "b": {"configMap": "b"}},
    ),
    "named": {"fullnameOverride": "backup", **single(podLabels={"team": "red"}), "commonLabels": {"team": "blue"}},
    "long-names": {"pairs": [pair("a-very-long-name-of-a-pair-that-somebody-has-chosen"), pair("Under_score.dotted")]},
    "own-user": single(podSecurityContext={"runAsUser": None, "runAsGroup": None, "fsGroup": None}),
    "many": {"defaults": {"config": CONFIG}, "pairs": [{"name": f"pair-{number}"} for number in range(8)]},
}

# What is kept in golden/.
KEPT = ("plain", "full", "operator", "try-out")
