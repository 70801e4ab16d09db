"""Every command line of README and docs, in an order in which they make sense, with the exit code each should have.

`TOOLS` has those of other tools that run here; `shell_lines.py` says why the others do not.

The lines stand here as they stand there. `given` says for what of a line something else is put in, by the name of an
attribute of the world that they run in; what is the same in all of them is in `STANDS_FOR`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One command line, its exit code, and a word of what it prints. `before` is a step of the world that it needs.

    `after` is one that looks at what came of it.

    What goes on for ever has `ends_by`, the signal that ends it; what runs as a process is one of the instances.
    """

    line: str
    code: int = 0
    says: str = ""
    before: str = ""
    after: str = ""
    ends_by: str = ""
    given: Mapping[str, str] = field(default_factory=dict)


def act(line: str, code: int = 0, says: str = "", *, before: str = "", ends_by: str = "", **given: str) -> Act:
    """Short for `Act`; names in `given` are attributes of the world, values what stands in the line."""
    return Act(
        line=line,
        code=code,
        says=says,
        before=before,
        ends_by=ends_by,
        given={text: name for name, text in given.items()},
    )


#: What the pages show, and the attribute of the world that stands for it.
STANDS_FOR: Final[Mapping[str, str]] = {
    "2026-05-04T10:00:00Z": "moment",
    "1f0c5e7a2b9d4c38": "restore_id",
    "6,7": "two_generations",
    "s3://acme-old-backup/prod": "old_root",
    "s3://bucket/prefix": "root",
    "s3://acme-kafka-backup/prod": "root",
    "broker:9092": "brokers",
    "other:9092": "brokers",
    "drill-cluster:9092": "brokers",
    "/tmp/sandbox": "sandbox_folder",
    "/data/orders": "fresh_folder",
    "s3://bucket/export": "other_fresh_folder",
    "4vXu1yX0Q0uM0mG3nq0c7Q": "deleted_topic_id",
}

#: Lines that are run nowhere here, and why.
_ERASED: Final = "needs a topic whose keys are deleted; test_erase.py has it, and runs the same on it"
_ERASED_BY_FILE: Final = "as above; test_erase_versions.py has a file of keys, and a bucket whose versions are purged"
_OF_ANOTHER_CLOUD: Final = "needs a root in that cloud; test_cli_policy.py names one, and runs the same on it"
_REWOUND: Final = "needs a topic that was damaged; test_rewind.py has it, and runs the same on it"
_OF_A_REPLICA: Final = "needs a replica that lacks entries; test_replica.py has one, and runs the same on it"
NOT_RUN: Final[Mapping[str, str]] = {
    "verify -c tandem.yaml --root s3://replica/prod": _OF_A_REPLICA,
    "restore -c tandem.yaml --root s3://replica/prod --generation 7 --commit 5321 "
    "--target-bootstrap-servers new-broker:9092": _OF_A_REPLICA,
    "status -c tandem.yaml --set store.root=s3://replica/prod --accept-heads": (
        "test_set_back.py accepts heads of a bucket that was set back"
    ),
    "policy gcs -c tandem.yaml --role writer --instance a": _OF_ANOTHER_CLOUD,
    "policy gcs -c tandem.yaml --role viewer": _OF_ANOTHER_CLOUD,
    "policy azure -c tandem.yaml --role writer --instance a": _OF_ANOTHER_CLOUD,
    "policy azure -c tandem.yaml --role viewer": _OF_ANOTHER_CLOUD,
    "demo": "tests/integration/install/test_demo.py runs it, as a slow test",
    "demo --dir /tmp/demo --keep": "test_demo.py runs it up to the story, and stops what is kept as it prints",
    "catch-up -c a.yaml --wait 1d --master spark://spark:7077 --range 5000000": (
        "needs a cluster of Spark, and a pair with scan.by: spark; test_catch_up.py has that pair"
    ),
    "status -c tandem.yaml --accept-heads": "test_set_back.py accepts heads of a bucket that was set back",
    "erase customers --key customer-7 --dry-run -c a.yaml": _ERASED,
    "erase customers --keys-file left.txt --purge-versions --yes -c a.yaml -o json": _ERASED_BY_FILE,
    "erase customers --key customer-7 --dry-run -c tandem.yaml": _ERASED,
    "erase customers --key customer-7 -c tandem.yaml": _ERASED,
    "erase customers --keys-file left.txt --yes -c tandem.yaml -o json": _ERASED_BY_FILE,
    "rewind orders --to 2026-05-04T10:00:00Z --dry-run -c a.yaml": _REWOUND,
    "rewind orders --to '2h ago' --where header.writer=job-7 -c a.yaml": _REWOUND,
    "rewind customers --to 2026-05-04T10:00:00Z --dry-run -c tandem.yaml": _REWOUND,
    "rewind customers --to 2026-05-04T10:00:00Z -c tandem.yaml": _REWOUND,
    "rewind customers --to '2h ago' --dry-run": _REWOUND,
    "rewind orders --undo 4be1f20c77a90d35 -c a.yaml": _REWOUND,
}

LOOKING: Final = (
    act("sandbox up", says="export AWS_ENDPOINT_URL"),
    act("sandbox up --dir /tmp/sandbox", says="export AWS_ENDPOINT_URL"),
    act("sandbox status -o json", says='"running": true'),
    act("config validate -c tandem.yaml", says="ok: pair look", before="prepare"),
    act("config validate", says="ok: pair look"),
    act("run -c tandem.yaml", before="as_a"),
    act("run", before="as_b"),
    act("run -c tandem.yaml --set instance=b", before="stop_b"),
    act("wait --for complete --timeout 1h -c a.yaml", says="complete, after"),
    act("status -c tandem.yaml", says="HEALTHY", before="settle"),
    act("status", says="HEALTHY"),
    act("status -o json", says='"role": "Active"'),
    act("status -c tandem.yaml --s3-only", says="HEALTHY"),
    act("history -c tandem.yaml", says="COMPLETE"),
    act("history", says="COMPLETE"),
    act("coordination tail -c tandem.yaml", says="PROGRESS"),
    act("records -c tandem.yaml --topic customers --key customer-7", says="order"),
    act("wait -c tandem.yaml --for complete --for steady --timeout 12h", says="complete, steady, after"),
    act("wait --for complete --for steady --timeout 12h", says="complete, steady, after"),
    act("wait -c tandem.yaml --for steady --timeout 10m", says="steady, after"),
    act("wait -c tandem.yaml --for steady --for role=b:Passive --timeout 10m", says="role=b:Passive"),
    act("wait --for role=b:Passive --timeout 2m", says="role=b:Passive"),
    act("check -c tandem.yaml --timeout 10", says="OK - pair look"),
    act("check -c tandem.yaml --timeout 10 --lag-critical 1000000", says="OK - pair look"),
    act("config show -c tandem.yaml", says="bootstrap.servers"),
    act("describe -c tandem.yaml customers", says="READ THROUGH"),
    act("list -c tandem.yaml", says="look"),
    act("list --root s3://acme-kafka-backup/prod", says="look"),
    act("checkpoint create -c tandem.yaml --id before-migration --keep 30d", says="completed"),
    act("policy s3 -c tandem.yaml --role writer --instance a", says="s3:PutObject"),
    act("policy s3 -c tandem.yaml --role viewer -o json", says='"S3Policy"'),
    act("policy bucket -c tandem.yaml", says="s3:if-none-match"),
    act("policy bucket -c tandem.yaml -o json", says='"S3Policy"'),
    act("policy kafka -c tandem.yaml --role writer --principal User:tandem-a", says="--topic customers"),
    act("policy kafka -c tandem.yaml --role restore --target customers.restored -o json", says='"KafkaPolicy"'),
    act("keys -c a.yaml"),
    act("keys -c a.yaml -o json", says='"kind": "Keys"'),
    act("signing-key generate signing.pem", says=" # "),
    act("signing-key generate /etc/tandem/signing.pem", says=" # ", fresh_folder="/etc/tandem/signing.pem"),
    act("signing-key generate b.pem -o json", says='"kind": "SigningKey"'),
    act("signing-key show b.pem", says=" # "),
    act("version", says="transcoder"),
    act("version -o json", says='"kind": "Version"'),
    act("signing-key show -c a.yaml -o json", 2),  # the pair that runs here signs nothing
)

TURNS: Final = (
    act("failover --to b --reason demo --yes --wait --timeout 2m", says="b is Active"),
    act("failover -c tandem.yaml --yes --wait", says="a is Active", before="settle"),
    act("failover --yes --wait", says="b is Active", before="settle"),
    act("failover -c tandem.yaml --force --yes --wait", says="a is Active", before="settle"),
)

RESTORES: Final = (
    act("restore --suffix .restored --dry-run", says="customers.restored", before="settle"),
    act("check --lag-critical 100000 --commit-age-critical 1h", says="OK - pair look"),
    act("restore -c tandem.yaml --suffix .restored", says="customers.restored"),
    act("restore list -c tandem.yaml", says="finished"),
    act("restore list -c a.yaml", says="customers.restored"),
    act("restore list --target-bootstrap-servers other:9092 -o json", says='"kind": "Restores"'),
    act("restore adopt customers.restored -c a.yaml -o json", says='"kind": "RestoreAdopted"'),
    act("restore adopt customers.restored -c a.yaml", 1),
    act("restore vanished customers --dry-run", 5),
    act("restore vanished customers -c a.yaml --dry-run", 5),
    act("restore vanished customers -c a.yaml --yes -o json", 5),
    act("restore abandon -c tandem.yaml 3f1c0a9be27d4416", 2),
    act("restore abandon 3f1c0a9be27d4416 -c a.yaml", 2),
    act("restore abandon 3f1c0a9be27d4416 --target-bootstrap-servers other:9092 --yes", 2),
    act("restore groups -c tandem.yaml --restore 1f0c5e7a2b9d4c38", says="billing", before="note_restore"),
    act("restore groups -c tandem.yaml --restore 1f0c5e7a2b9d4c38 --execute", says="billing"),
    act("restore groups -c tandem.yaml --restore 1f0c5e7a2b9d4c38 --rollback", says="billing"),
    act("restore groups -c a.yaml --target-bootstrap-servers other:9092"),
    act("restore groups -c a.yaml --group-suffix .restored --execute"),
    act("restore -c tandem.yaml --at 2026-05-04T10:00:00Z --suffix .before"),
    act("restore -c tandem.yaml --checkpoint before-migration --suffix .before", before="delete_restored"),
    act("restore --suffix .restored", says="customers.restored", before="delete_restored"),
    act("restore customers --at 2026-05-04T10:00:00Z --suffix .before", before="delete_restored"),
    act(
        "export -c tandem.yaml --topics customers --at 2026-05-04T10:00:00Z --latest-per-key --format parquet "
        "--to customers-then"
    ),
    act("verify -c tandem.yaml", says="clean: everything is as the chains say"),
    act("verify -c tandem.yaml -o json", says='"kind": "Verify'),
    act("verify -c tandem.yaml --sample 5%"),
    act("verify -c tandem.yaml --repair"),
    act("verify -c tandem.yaml --against-topic"),
    act("verify -c tandem.yaml --against-generation 6,7"),
    act("drill -c tandem.yaml"),
    act("drill"),
    act(
        "check -c tandem.yaml --timeout 10 --commit-age-critical 1h --verify-age 8d --drill-age 35d",
        says="OK - pair look",
    ),
    act("retention -c tandem.yaml --horizon 7d"),
    act("retention -c tandem.yaml --horizon 7d --execute"),
    act("retention -c tandem.yaml --execute"),
)

OLD_FILES: Final = (
    act("verify --layout connector --root s3://acme-old-backup/prod"),
    act(
        "restore --layout connector --root s3://acme-old-backup/prod --target-bootstrap-servers broker:9092 --dry-run",
        another_cluster="broker:9092",
    ),
    act(
        "restore --layout connector --root s3://acme-old-backup/prod --target-bootstrap-servers broker:9092 "
        "--suffix .restored",
        suffix_of_old=".restored",
    ),
    act("records --layout connector --root s3://acme-old-backup/prod --topic customers --key customer-7"),
    act(
        "export --layout connector --root s3://acme-old-backup/prod --topics customers --format parquet --to customers"
    ),
)

#: The examples of docs/cli.md.
EXAMPLES: Final = (
    act("list -c a.yaml", says="look"),
    act("list --root s3://bucket/prefix -o json", says='"look"'),
    act("status -c a.yaml", says="HEALTHY", before="settle"),
    act("status -w 5", ends_by="SIGINT", says="HEALTHY"),
    act("status --s3-only --root s3://bucket/prefix --pair orders", says="HEALTHY", pair="orders"),
    act("wait --for steady --for role=b:Active", a_is_active="b:Active"),
    act("wait --for generation=7 --timeout 30m -o json", newest="generation=7"),
    act("check -c a.yaml", says="OK - "),
    act("check --lag-warning 10000 --lag-critical 1000000 --verify-age 8d --drill-age 35d", says="OK - "),
    act("check --s3-only --commit-age-critical 1h -o json", says='"severity": "OK"'),
    act("check --connections --timeout 30", says="OK - "),
    act("describe 7 -c a.yaml", newest_number="7"),
    act("describe orders"),
    act("describe topic/7 -o json", topic_orders="topic/7"),
    act("failover -c a.yaml", 5, says="--yes"),
    act("rotate -c a.yaml", 5, says="--yes"),
    act("rotate --reason 'node drain' --yes --timeout 2h", says=" is Active", before="settle"),
    act("reinit -c a.yaml", 5, says="--yes", before="settle"),
    act("reinit --generation 7 --reason 'objects were lost'", 5, newest_number="7"),
    act("reinit b --yes --timeout 2h", owner="b"),
    act("failover --to b --reason 'node drain' --yes --timeout 2h -o json", before="settle", passive="b"),
    act("pause -c a.yaml", before="settle"),
    act("pause --for 4h --reason 'broker upgrade'"),
    act("pause --until 2026-05-04T10:00:00Z -o json", tomorrow="2026-05-04T10:00:00Z"),
    act("resume -c a.yaml"),
    act("resume -o json"),
    act("history -c a.yaml"),
    act("history --generation 7 --commits -o json", newest_number="7"),
    act("report --html status.html -c a.yaml"),
    act("report --html - -c a.yaml", says="<!doctype html>"),
    act("coordination tail -c a.yaml --since 1h --no-heartbeats"),
    act("coordination tail --follow -o json", ends_by="SIGINT", says='"event"'),
    act("checkpoint create before-migration -c a.yaml", says="completed"),
    act("checkpoint create --keep 30d --timeout 5m -o json", says='"completed"'),
    act("checkpoint list -c a.yaml", says="before-migration"),
    act("checkpoint list -o json", says='"before-migration"'),
    act("checkpoint show before-migration -c a.yaml", says="completed"),
    act("checkpoint show before-migration -o json", says='"completed"'),
    act("checkpoint delete before-migration --yes -c a.yaml"),
    act("restore -c a.yaml --suffix .restored --dry-run"),
    act("restore orders -c a.yaml --at 2026-05-04T10:00:00Z --to orders.before", before="delete_restored"),
    act(
        "restore --root s3://bucket/prefix --pair orders --target-bootstrap-servers other:9092",
        pair_and_suffix="orders",
    ),
    act("records orders --key customer-7 -c a.yaml"),
    act(
        "records --root s3://bucket/prefix --pair shop --topic orders --key 00ff --key-format hex -o json",
        pair="shop",
    ),
    act("export orders -c a.yaml --format parquet --to /data/orders"),
    act("export -c a.yaml --format jsonl --to s3://bucket/export --latest-per-key --no-tombstones"),
    act("verify -c tandem.yaml --against-topic --topics customers -o json"),
    act("drill customers -c tandem.yaml"),
    act("drill -c tandem.yaml --target-bootstrap-servers drill-cluster:9092 -o json"),
    act("retention -c a.yaml"),
    act("retention -c a.yaml --horizon 7d --execute -o json"),
    act("config validate -c a.yaml"),
    act("config validate -c a.yaml --set rotation.interval=14d"),
    act("config show -c a.yaml -o table"),
    act("config schema", says="properties"),
    act("config example", says="pair: orders"),
    act("catch-up -c a.yaml", 5, says="bases that are still to be read"),
    act("release old-orders -c a.yaml", 5, says="run it again with --yes", before="delete_topics"),
    act(
        "release orders --topic-id 4vXu1yX0Q0uM0mG3nq0c7Q --generation 7 --yes -o json",
        newest_number="7",
        deleted_orders="orders",
    ),
)

#: docs/operations.md, what is not there already.
OPERATIONS: Final = (
    act(
        "restore customers -c tandem.yaml --target-bootstrap-servers new-broker:9092 --partitions 12 "
        "--repartition murmur2 --dry-run",
        says="12",
        another_cluster="new-broker:9092",
    ),
    act(
        "restore -c tandem.yaml --target-bootstrap-servers new-broker:9092 --dry-run", another_cluster="new-broker:9092"
    ),
    act("restore -c tandem.yaml --target-bootstrap-servers new-broker:9092", another_cluster="new-broker:9092"),
    act(
        "restore groups -c tandem.yaml --restore 1f0c5e7a2b9d4c38 --target-bootstrap-servers new-broker:9092",
        says="billing",
        before="note_restore",
        brokers="new-broker:9092",
    ),
    act(
        "restore groups -c tandem.yaml --restore 1f0c5e7a2b9d4c38 --target-bootstrap-servers new-broker:9092 --execute",
        says="billing",
        brokers="new-broker:9092",
    ),
    act("release -c tandem.yaml customers", 5, says="run it again with --yes", deleted_topic="customers"),
    act("release -c tandem.yaml customers --yes", says="released", deleted_topic="customers"),
)

#: Lines of other tools, each as a shell's; one is a here-document. The last ones end the pair.
TOOLS: Final = (
    Act(
        line="openssl rand -base64 32 > /run/secrets/tandem/data.key",
        after="key_is_taken",
        given={"/run/secrets/tandem/data.key": "key_file"},
    ),
    Act(
        line="kafka-transactions.sh --bootstrap-server BROKER find-hanging --broker-id ID",
        says="ProducerId",
        before="open_transaction",
        given={"BROKER": "brokers", "ID": "broker_id"},
    ),
    Act(
        line="kafka-transactions.sh --bootstrap-server BROKER abort --topic TOPIC --partition N --start-offset OFFSET",
        after="transaction_is_aborted",
        given={"BROKER": "brokers", "TOPIC": "stuck_topic", "N": "first", "OFFSET": "first"},
    ),
    Act(
        line="""\
python - <<'EOF'
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": "BROKER"})    # and the login, as the section `kafka` of tandem.yaml has it
deleted = lambda error, record: print(error or "deleted")
producer.produce("_tandem_restore_progress", key="KEY", partition=0, on_delivery=deleted)
producer.flush()
EOF
""",
        says="deleted",
        before="cut_progress",
        after="progress_is_whole",
        given={"BROKER": "brokers", "KEY": "cut_restore"},
    ),
    Act(
        line="kafka-topics.sh --bootstrap-server broker-1:9093 --delete --topic _compacted_log_backup_coordination",
        before="stop_both",
        after="coordination_is_gone",
        given={"broker-1:9093": "brokers"},
    ),
)

END: Final = (act("sandbox down", says="down; data and logs stay", before="stop_both"),)

CHAPTERS: Final = (*LOOKING, *TURNS, *RESTORES, *OLD_FILES, *EXAMPLES, *OPERATIONS, *END)
