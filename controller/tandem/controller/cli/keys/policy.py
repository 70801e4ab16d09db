"""`tandem policy`: the rights of each role, ready for IAM, for the bucket, and for kafka-acls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.options.backup_place import of_store
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption
from tandem.controller.roles.role import CredentialRole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tandem.controller.config import Config
    from tandem.controller.roles.kafka import Acl
    from tandem.controller.roles.s3 import BucketPlace

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Print the rights that each role needs, and no others.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Policy:
    """`tandem policy s3` and `bucket`. `role` is None for the bucket's; `policy` is in the syntax of AWS IAM."""

    pair: str
    role: CredentialRole | None
    policy: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudPolicy:
    """`tandem policy gcs` and `azure`. `policy` is in the language of that cloud's IAM."""

    pair: str
    role: CredentialRole
    policy: Mapping[str, Any]


RoleOption = Annotated[
    CredentialRole,
    typer.Option(
        "--role",
        help="What gets the rights: writer is run, janitor retention and erase, reader export and records, operator "
        "and viewer are people; the others are called as their command.",
    ),
]

InstanceOption = Annotated[
    str | None, typer.Option("--instance", help="The writer's own; left out: that of the configuration.")
]


@app.command(
    epilog=examples(
        "tandem policy s3 -c tandem.yaml --role writer --instance a > writer-a.json",
        "tandem policy s3 -c tandem.yaml --role viewer -o json",
    )
)
def s3(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    role: RoleOption,
    instance: InstanceOption = None,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print a role's policy in the syntax of AWS IAM.

    `-o table` is the bare policy, for the IAM of the store. Objects are allowed below the pair's folder alone.
    """
    from tandem.controller.roles.s3 import policy  # noqa: PLC0415 - loaded when the command runs, not for --help

    loaded = of_store(context, config, overrides)
    found = policy(_place(loaded), role, instance=_own(loaded, role, instance))
    _show("S3Policy", S3Policy(pair=loaded.pair, role=role, policy=found), output_)


def _own(loaded: Config, role: CredentialRole, instance: str | None) -> str | None:
    if instance is not None and role is not CredentialRole.WRITER:
        raise ConfigError(
            f"--instance requires --role writer, not {role.value}", code="TDM-N021", remedy="leave it out"
        )
    return (instance or loaded.instance) if role is CredentialRole.WRITER else None


@app.command(
    epilog=examples(
        "tandem policy gcs -c tandem.yaml --role writer --instance a", "tandem policy gcs -c tandem.yaml --role viewer"
    )
)
def gcs(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    role: RoleOption,
    instance: InstanceOption = None,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print a role's permissions on a bucket of Google Cloud Storage, with the conditions of their bindings.

    Make a custom role of each binding's permissions, and bind it on the bucket with the condition.
    """
    from tandem.controller.roles.cloud import gcs_policy  # noqa: PLC0415 - loaded when the command runs, not for --help

    loaded = of_store(context, config, overrides)
    found = gcs_policy(_place(loaded, "gs"), role, instance=_own(loaded, role, instance))
    _show("CloudPolicy", CloudPolicy(pair=loaded.pair, role=role, policy=found), output_)


@app.command(
    epilog=examples(
        "tandem policy azure -c tandem.yaml --role writer --instance a",
        "tandem policy azure -c tandem.yaml --role viewer",
    )
)
def azure(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    role: RoleOption,
    instance: InstanceOption = None,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print a role's custom role on Azure Blob Storage, and the condition of its assignment on the container."""
    from tandem.controller.roles.cloud import azure_policy  # noqa: PLC0415 - loaded when the command runs, not for --help

    loaded = of_store(context, config, overrides)
    found = azure_policy(_place(loaded, "az"), role, instance=_own(loaded, role, instance))
    _show("CloudPolicy", CloudPolicy(pair=loaded.pair, role=role, policy=found), output_)


@app.command(epilog=examples("tandem policy bucket -c tandem.yaml", "tandem policy bucket -c tandem.yaml -o json"))
def bucket(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print a policy of the bucket that refuses everybody to overwrite, and to delete claims and chain entries.

    Its condition keys are those of AWS. A store that does not know them may refuse the policy, or every put.
    """
    from tandem.controller.roles.s3 import bucket_policy  # noqa: PLC0415 - loaded when the command runs, not for --help

    loaded = of_store(context, config, overrides)
    _show("S3Policy", S3Policy(pair=loaded.pair, role=None, policy=bucket_policy(_place(loaded))), output_)


@app.command(
    epilog=examples(
        "tandem policy kafka -c tandem.yaml --role writer --principal User:tandem-a",
        "tandem policy kafka -c tandem.yaml --role restore --target customers.restored -o json",
    )
)
def kafka(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    role: RoleOption,
    principal: Annotated[
        str | None, typer.Option("--principal", help="Principal that gets them; default: User: and sasl.username.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="TOPIC",
            help="Topic that a restore writes (with * at its end: all that begin so) or a drill drills; repeatable.",
        ),
    ] = None,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print a role's ACLs, as command lines of kafka-acls.

    Kafka knows no regular expressions: of a pattern the part before its first wildcard counts, as a prefix. Restores
    write topics of the guarded names unless --target says otherwise; drills need the names of the topics, in
    topics.include or as --target.
    """
    from tandem.controller.roles.kafka import KafkaPolicy, acls, command_lines, scope_of  # noqa: PLC0415 - loaded when it runs
    from tandem.sink.kafka.auth.client_config import servers_of  # noqa: PLC0415 - likewise

    loaded = load(context, config, overrides)
    scope = scope_of(
        topics=loaded.topics.include,
        expressions=loaded.topics.expressions,
        coordination=loaded.coordination.topic,
        groups=loaded.groups.include if loaded.groups.enabled else None,
        targets=target or (),
    )
    found = acls(scope, role)
    who = principal or _principal(loaded)
    if role is CredentialRole.DRILL and any(name.endswith("*") for name in target or ()):
        raise ConfigError(
            "--target: a drill's topics have whole names", code="TDM-N022", remedy="repeat --target for each"
        )
    if ":" not in who:
        raise ConfigError(f"--principal {who}: no type of principal", code="TDM-N023", remedy=f"write User:{who}")
    for warning in _warnings(role, loaded, target or (), found):
        output.warn(warning)
    if not found:
        output.note(f"role {role.value} asks no broker: it needs no rights on Kafka")
    lines = list(command_lines(found, principal=who, bootstrap=servers_of(loaded.kafka.reveal())))
    body = KafkaPolicy(pair=loaded.pair, role=role, principal=who, acls=found, commands=lines)
    output.show(kind="KafkaPolicy", body=body, output=output_, tables=["\n".join(lines)] if lines else [])


def _warnings(role: CredentialRole, loaded: Config, targets: Sequence[str], found: Sequence[Acl]) -> Iterator[str]:
    if role is CredentialRole.RESTORE and not targets:
        yield "these rights write to the guarded topics: give them on another cluster, or name others with --target"
    if role is CredentialRole.DRILL and loaded.topics.expressions and not targets:
        yield "drills of topics that patterns guard are left out: name each such topic with --target"
    if role is CredentialRole.RESTORE_GROUPS and not loaded.groups.enabled:
        yield "no rights on groups, as groups.enabled is off: offsets of before take Read and Delete on their groups"
    if any(acl.name == "*" and acl.resource.value == "topic" for acl in found):
        yield "a pattern begins with a wildcard, so these rights are on all topics: narrow it, or what is printed here"


def _principal(loaded: Config) -> str:
    return f"User:{loaded.kafka.reveal().get('sasl.username', 'tandem')}"


def _place(loaded: Config, kind: str = "s3") -> BucketPlace:
    from tandem.controller.roles.s3 import place_of  # noqa: PLC0415 - loaded when the command runs, not for --help

    store, encryption = loaded.store, loaded.encryption
    if store.scheme not in {kind, "file"}:
        raise ConfigError(
            f"store.root {store.root}: these rights are for {kind}://",
            code="TDM-N025",
            remedy="`tandem policy s3`, `gcs` and `azure` are for s3, gs and az",
        )
    new = () if encryption.aws_kms_key_arn is None else (encryption.aws_kms_key_arn,)
    place = place_of(
        store.root,
        pair=loaded.pair,
        instances=loaded.instances,
        region=store.region,
        server_key=store.kms_key_id,
        data_keys=(*new, *encryption.decrypt_aws_kms_key_arns),
    )
    if store.kms_key_id is not None and place.server_key is None:
        output.warn("store.kms_key_id is no ARN, so kms:Decrypt and kms:GenerateDataKey on it are left out")
    return place


def _show(kind: str, body: S3Policy | CloudPolicy, form: OutputFormat) -> None:
    output.show(kind=kind, body=body, output=form, tables=[json.dumps(body.policy, indent=2)])
