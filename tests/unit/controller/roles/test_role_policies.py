"""The policies of each role against what they were meant to allow, and against the table in docs/roles.md."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from typing import Any

import pytest
from support.pages import role_actions as rows
from support.pages.role_actions import CREDENTIALS, KAFKA_ACTIONS, S3_ACTIONS

from tandem.backup_avro.chain import layout
from tandem.backup_avro.errors import ConfigError
from tandem.controller.roles.cloud import azure_policy, gcs_policy
from tandem.controller.roles.kafka import Acl, AclResource, acls, command_lines, literal_prefix, scope_of
from tandem.controller.roles.role import COMMANDS, CredentialRole
from tandem.controller.roles.s3 import bucket_policy, place_of, policy
from tandem.spark_jobs.restore.progress.task_progress import TOPIC

PLACE = place_of(rows.ROOT, pair=rows.PAIR, instances=("a", "b"))
KEY = "arn:aws:kms:eu-central-1:111122223333:key/0000"


def allows(document: dict[str, Any], action: str, key: str | None) -> bool:
    """Whether a policy allows an action, as IAM reads the little that ours use of its language."""
    bucket = f"arn:aws:s3:::{rows.BUCKET}"
    listing = action.startswith("List")
    resource = bucket if key is None or listing else f"{bucket}/{key}"
    for statement in document["Statement"]:
        assert statement["Effect"] == "Allow"
        if f"s3:{action}" not in statement["Action"]:
            continue
        prefixes = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix", ["*"])
        fits = any(fnmatchcase(key or "", one) for one in prefixes) if listing else True
        if fits and any(fnmatchcase(resource, one) for one in statement["Resource"]):
            return True
    return False


@pytest.mark.parametrize("name", CREDENTIALS)
def test_the_policy_of_s3_allows_what_it_should_and_no_more(name: str) -> None:
    """Row by row of the table."""
    role, instance = CREDENTIALS[name]
    document = policy(PLACE, role, instance=instance)
    for row in S3_ACTIONS:
        assert allows(document, row.action, row.key) == (name in row.allowed), row.name


_PERMISSIONS = {"GetObject": "get", "PutObject": "create", "DeleteObject": "delete", "ListBucket": "list"}
_STARTS = re.compile(
    r'(resource\.name|api\.getAttribute\("storage\.googleapis\.com/objectListPrefix", ""\))\.startsWith\("([^"]*)"\)'
)


@pytest.mark.parametrize("name", CREDENTIALS)
def test_the_bindings_of_google_allow_what_they_should_and_no_more(name: str) -> None:
    """Row by row of the same table, as far as the rows are about objects; each condition is within Google's limit."""
    role, instance = CREDENTIALS[name]
    bindings = gcs_policy(PLACE, role, instance=instance)["bindings"]
    rows_of_objects = [row for row in S3_ACTIONS if row.action in _PERMISSIONS and row.key is not None]
    assert len(rows_of_objects) > 30
    for row in rows_of_objects:
        allowed = False
        for binding in bindings:
            terms = binding["condition"]["expression"].split(" || ")
            assert len(terms) <= 13
            begins = [re.fullmatch(_STARTS, term) for term in terms]
            assert all(begins), terms
            asked = row.key if row.action == "ListBucket" else f"projects/_/buckets/{rows.BUCKET}/objects/{row.key}"
            fits = any(str(asked).startswith(begin[2]) for begin in begins if begin)
            allowed = allowed or (fits and binding["permissions"] == [f"storage.objects.{_PERMISSIONS[row.action]}"])
        assert allowed == (name in row.allowed), row.name


@pytest.mark.parametrize("name", CREDENTIALS)
def test_the_condition_of_azure_allows_what_it_should_and_no_more(name: str) -> None:
    """Row by row likewise: the role has the action, and the condition's clause for it one of the names."""
    role, instance = CREDENTIALS[name]
    made = azure_policy(PLACE, role, instance=instance)
    blobs = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
    clauses = dict(re.findall(r"\(\(!\((.*?)\)\) OR \((.*?)\)\)(?: AND |$)", made["condition"]))
    read, listing = f"ActionMatches{{'{blobs}/read'}}", "SubOperationMatches{'Blob.List'}"
    keys = {
        "GetObject": f"{read} AND NOT {listing}",
        "ListBucket": f"{read} AND {listing}",
        "PutObject": f"ActionMatches{{'{blobs}/add/action'}}",
        "DeleteObject": f"ActionMatches{{'{blobs}/delete'}}",
    }
    assert set(clauses) <= set(keys.values())
    assert not any(action.endswith("/write") for action in made["role"]["DataActions"]), "it could overwrite"
    for row in S3_ACTIONS:
        if row.action in keys and row.key is not None:
            names = re.findall(r"StringLike '([^']*)'", clauses.get(keys[row.action], ""))
            assert any(fnmatchcase(row.key, one) for one in names) == (name in row.allowed), row.name


@pytest.mark.parametrize("name", CREDENTIALS)
def test_the_acls_allow_what_they_should_and_no_more(name: str) -> None:
    """Row by row of the table."""
    role = CREDENTIALS[name][0]
    found = acls(rows.scope_for(role), role)
    for row in KAFKA_ACTIONS:
        assert rows.granted(found, row.needs) == (name in row.allowed), row.name


@pytest.mark.parametrize("sign", ["*", "?", "${aws:username}"])
def test_what_a_policy_would_read_as_more_than_a_name_is_refused(sign: str) -> None:
    """`s3://bucket/team-*` is one folder for S3, and every team's in a policy."""
    right: dict[str, Any] = {"root": "s3://bucket/team", "pair": "shop", "instances": ("a", "b")}
    for setting, wrong in (
        ("store.root", {"root": f"s3://bucket/team{sign}/x"}),
        ("pair", {"pair": f"shop{sign}"}),
        ("instances", {"instances": ("a", f"b{sign}")}),
        ("store.kms_key_id", {"server_key": f"{KEY}{sign}"}),
        ("encryption", {"data_keys": (KEY, f"{KEY}{sign}")}),
    ):
        with pytest.raises(ConfigError) as caught:
            place_of(**(right | wrong))
        assert str(caught.value).startswith(f"{setting} ")
        assert f"choose a {setting} without them" in str(caught.value)
    assert place_of(**right, server_key=KEY, data_keys=(KEY,)).arn("x") == "arn:aws:s3:::bucket/team/shop/x"


def test_what_may_be_got_may_be_listed() -> None:
    """Else S3 answers 403 to what is not there, and no chain's head is found."""
    for role, instance in CREDENTIALS.values():
        document = policy(PLACE, role, instance=instance)
        for row in S3_ACTIONS:
            if row.action == "GetObject" and allows(document, "GetObject", row.key):
                assert allows(document, "ListBucket", row.key), (role, row.name)


def test_the_page_says_so() -> None:
    """docs/roles.md is written by `make roles`, from what servers did."""
    assert rows.on_page("s3") == rows.s3_table([row.allowed | row.besides for row in S3_ACTIONS])
    assert rows.on_page("kafka") == rows.kafka_table([row.allowed for row in KAFKA_ACTIONS])
    page = rows.PAGE.read_text(encoding="utf-8")
    for role, what in COMMANDS.items():
        assert f"| `{role}` | {what} |" in page


def test_every_folder_of_a_pair_is_some_roles() -> None:
    """A folder that the layout gets later needs rights."""
    for folder in layout.FOLDERS:
        puts = [
            role
            for role, instance in CREDENTIALS.values()
            if allows(policy(PLACE, role, instance=instance), "PutObject", f"{rows.PREFIX}/{rows.PAIR}/{folder}/x")
        ]
        assert puts, folder


def test_names_are_those_of_the_code() -> None:
    """The rows spell them out."""
    assert rows.PROGRESS == TOPIC
    assert layout.claim_key(rows.PAIR, 1) in {(row.key or "").removeprefix(f"{rows.PREFIX}/") for row in S3_ACTIONS}


def test_a_writer_says_which_one_it_is() -> None:
    """It may delete what is its own alone."""
    with pytest.raises(ConfigError, match=r"which instance.*--instance a or b"):
        policy(PLACE, CredentialRole.WRITER)
    with pytest.raises(ConfigError, match="c is no instance of the pair"):
        policy(PLACE, CredentialRole.WRITER, instance="c")


@pytest.mark.parametrize(
    ("region", "partition"),
    [(None, "aws"), ("eu-central-1", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")],
)
def test_partitions_of_arns(region: str | None, partition: str) -> None:
    """A policy with ARNs of another partition allows nothing."""
    place = place_of("s3://bucket", pair="p", instances=("a", "b"), region=region)
    assert place.arn("pins/*") == f"arn:{partition}:s3:::bucket/p/pins/*"


def kms(role: CredentialRole, instance: str | None = None, **keys: Any) -> dict[str, list[str]]:
    """The actions on keys that a role gets, with their resources."""
    place = place_of(rows.ROOT, pair=rows.PAIR, instances=("a", "b"), **keys)
    statements = policy(place, role, instance=instance)["Statement"]
    return {action: one["Resource"] for one in statements for action in one["Action"] if action.startswith("kms:")}


def test_keys_of_kms() -> None:
    """The store's key is for all that touch objects, that of records for those that touch records."""
    assert kms(CredentialRole.VIEWER) == {}
    assert kms(CredentialRole.VIEWER, server_key=KEY) == {"kms:Decrypt": [KEY]}
    assert kms(CredentialRole.VIEWER, data_keys=(KEY,)) == {}
    assert kms(CredentialRole.READER, data_keys=(KEY,)) == {"kms:Decrypt": [KEY]}
    assert kms(CredentialRole.OPERATOR, server_key=KEY) == {"kms:Decrypt": [KEY], "kms:GenerateDataKey": [KEY]}
    assert kms(CredentialRole.WRITER, "a", data_keys=(KEY,)) == {"kms:Decrypt": [KEY], "kms:GenerateDataKey": [KEY]}
    assert kms(CredentialRole.WRITER, "a", server_key="alias/x") == {}


def test_the_bucket_refuses_everybody() -> None:
    """To overwrite anything of the pair, and to delete from its chains; the rest is the roles' affair."""
    overwrite, chains = bucket_policy(PLACE)["Statement"]
    assert {overwrite["Effect"], chains["Effect"]} == {"Deny"}
    assert {overwrite["Principal"], chains["Principal"]} == {"*"}
    assert overwrite["Resource"] == [f"arn:aws:s3:::{rows.BUCKET}/{rows.PREFIX}/{rows.PAIR}/*"]
    assert overwrite["Condition"]["Null"] == {"s3:if-none-match": "true"}
    assert chains["Resource"] == [f"arn:aws:s3:::{rows.BUCKET}/{rows.PREFIX}/{rows.PAIR}/generations/*"]
    json.dumps(bucket_policy(PLACE))


@pytest.mark.parametrize(
    ("expression", "prefix"),
    [
        (r"orders\..*", "orders."),
        ("orders", "orders"),
        ("orders.*", "orders"),
        ("orders?", "order"),
        ("orders*", "order"),
        ("a{2}", ""),
        ("shop-[0-9]+", "shop-"),
        ("shop(a)b", "shop"),
        ("a|b", ""),
        (".+-changelog", ""),
        (r"orders\d", "orders"),
        (r"orders\.?x", "orders"),
        ("^orders$", ""),
        ("", ""),
        ("orders\\", "orders"),
    ],
)
def test_what_names_begin_with_that_match(expression: str, prefix: str) -> None:
    """As far as it is plain; too short reaches further, too long would leave topics out."""
    assert literal_prefix(expression) == prefix


def test_patterns_become_prefixes() -> None:
    """One that is within another is left out; one that begins with a wildcard is every name."""
    scope = scope_of(
        topics=(),
        expressions=[r"orders\..*", "orders.eu.+", "x.*"],
        coordination="c",
        groups=("g.*",),
        targets=["t", "u.*"],
    )
    assert scope.guarded.prefixes == ("orders", "x")
    assert scope.groups is not None
    assert scope.groups.prefixes == ("g",)
    assert (scope.targets.literal, scope.targets.prefixes) == (("t",), ("u.",))
    everything = scope_of(topics=(), expressions=[".*"], coordination="c", groups=None)
    found = acls(everything, CredentialRole.WRITER)
    assert Acl(resource=AclResource.TOPIC, name="*", operations=("Read", "DescribeConfigs")) in found
    assert not [acl for acl in found if acl.resource is AclResource.GROUP and acl.name == "*"]
    assert acls(everything, CredentialRole.JANITOR) == ()
    assert not [acl for acl in acls(everything, CredentialRole.RESTORE_GROUPS) if acl.resource is AclResource.GROUP]
    setting = Acl(resource=AclResource.GROUP, name="g", operations=("Read", "Delete"), prefixed=True)
    assert setting in acls(scope, CredentialRole.RESTORE_GROUPS)


def test_a_drill_has_no_rights_on_what_a_pattern_guards() -> None:
    """What makes a topic scratch is the end of its name; with a prefix it could delete what is guarded."""
    scope = scope_of(topics=["t"], expressions=[r"orders\..*"], coordination="c", groups=None)
    topics = {acl.name for acl in acls(scope, CredentialRole.DRILL) if acl.resource is AclResource.TOPIC}
    assert topics == {"t.drill-", TOPIC}


def test_the_lines_of_kafka_acls() -> None:
    """Quoted for a shell."""
    wanted = (
        Acl(resource=AclResource.TOPIC, name="orders.", operations=("Read", "DescribeConfigs"), prefixed=True),
        Acl(resource=AclResource.GROUP, name="*", operations=("Describe",)),
    )
    begin = "kafka-acls.sh --bootstrap-server b:9093 --add --allow-principal 'User:CN=tandem a'"
    assert list(command_lines(wanted, principal="User:CN=tandem a", bootstrap="b:9093")) == [
        f"{begin} --operation Read --operation DescribeConfigs --topic orders. --resource-pattern-type prefixed",
        f"{begin} --operation Describe --group '*'",
    ]
