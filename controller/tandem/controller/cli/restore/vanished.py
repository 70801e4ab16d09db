"""`tandem restore vanished`: bring keys that vanished from a compacted topic back into it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandem.backup_avro.errors import RefusedError
from tandem.controller.cli.options.completion import generation_numbers, topic_names
from tandem.controller.cli.options.consent import YesOption, consent
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.options.known_heads import require_known_heads
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption, WideOption
from tandem.controller.cli.output.topic_rows import TopicRows, grouped

if TYPE_CHECKING:
    from tandem.sink.kafka.cluster.admin import ClusterAdmin
    from tandem.spark_jobs.restore.vanished.find import KeptPartition, LostRecords
    from tandem.spark_jobs.restore.vanished.write_back import WriteBack

_SAMPLE: Final = 5
_POLICY: Final = "cleanup.policy"
_RETENTION: Final = ("retention.ms", "retention.bytes")
_UNLIMITED: Final = "-1"
_HASH_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class VanishedPartition:
    """What a partition lost, and what comes back of it.

    `vanished` keys are in `kept_in` and not in `missing_in`, two generations. `newer` of them have a newer record in
    the topic or in a newer copy, and are left as they are. `restorable` are to be written, `written` were. `sample`: of
    a few of those, the first 12 digits of the SHA-256 of the key, or the key with --show-keys.
    """

    topic: str
    partition: int
    kept_in: int
    missing_in: int
    vanished: int
    newer: int
    restorable: int
    written: int
    sample: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VanishedKeysDocument:
    """`tandem restore vanished`."""

    pair: str
    executed: bool
    partitions: Sequence[VanishedPartition]


def vanished(
    context: typer.Context,
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="As `tandem status` names them.", autocompletion=topic_names)
    ],
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            metavar="N",
            min=1,
            help="The generation that has the keys; default: the newest kept one.",
            autocompletion=generation_numbers,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")] = False,
    show_keys: Annotated[bool, typer.Option("--show-keys", help="Show keys in clear, not by their hash.")] = False,
    yes: YesOption = False,
    output_: OutputOption = OutputFormat.TABLE,
    wide: WideOption = False,
) -> None:
    """Bring keys that vanished from a compacted topic without a tombstone back into the topic, and nothing else.

    A key that has a newer record is left as it is, also if that is written meanwhile: each transaction is committed
    only if no other producer wrote one of its keys before it. The copy that was kept stays until `tandem release`. A
    run that was interrupted is repeated.

    Exit code 0 also if keys were left alone, 5 if it is refused: no copy is kept for the topic's keys, no copy proves
    the loss any longer, the topic was recreated, or there is no terminal and no --yes.
    """
    from tandem.controller.status.outside_view import (  # noqa: PLC0415 - S3 is slow to import
        read_chains,
        store_for_looking,
    )
    from tandem.sink.kafka.cluster.admin import ClusterAdmin  # noqa: PLC0415 - Kafka is slow to import
    from tandem.spark_jobs.restore.vanished.find import (  # noqa: PLC0415 - likewise
        NOT_CUT,
        CopiedPartitions,
        kept_partitions,
    )
    from tandem.spark_jobs.restore.vanished.write_back import WriteBack, mark_cuts  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress  # noqa: PLC0415 - likewise

    settings = load(context, config, overrides)
    with closing(store_for_looking(settings)) as store, ClusterAdmin(dict(settings.kafka.reveal())) as admin:
        generations = read_chains(require_known_heads(settings, store)).generations
        partitions = kept_partitions(generations, topics, generation)
        configs = _require_same_topics(admin, partitions)
        copies = CopiedPartitions(store, frozenset(one.key for one in partitions))
        found: list[tuple[WriteBack, LostRecords]] = []
        for one in mark_cuts(partitions, generations, dict(settings.kafka.reveal())):
            newest = [g for g in generations if g.number > one.kept.number and g.usable(one.key)]
            if one.cut_at != NOT_CUT:
                output.warn(
                    f"{one}: its log was truncated at offset {one.cut_at} since: keys that have a record from there on "
                    "are left as they are"
                )
            output.note(f"{one}: comparing generation {one.kept.number} with {one.missing_in.number} and the topic")
            back = WriteBack(
                partition=one,
                copies=copies,
                pair=settings.pair,
                cluster=ClusterAddress(props=dict(settings.kafka.reveal()), batch_limit=settings.memory.largest_batch),
                config=configs[one.topic],
            )
            found.append((back, back.find(newest)))
        planned = [_partition(lost, show_keys=show_keys) for _, lost in found]
        count = sum(row.restorable for row in planned)
        if not dry_run and count:
            for row in planned:
                output.note(f"{row.topic}-{row.partition}: {row.restorable:,} of {row.vanished:,} keys come back")
            consent(f"Write {count:,} records into {', '.join(sorted({row.topic for row in planned}))}?", yes=yes)
            planned = _write_back(planned, found)
    _show(VanishedKeysDocument(pair=settings.pair, executed=not dry_run, partitions=planned), output_, wide=wide)


def _write_back(
    planned: Sequence[VanishedPartition], found: Sequence[tuple[WriteBack, LostRecords]]
) -> list[VanishedPartition]:
    """Write the records of one partition after the other; return the rows of `planned`, with what was written."""
    done: list[VanishedPartition] = []
    for row, (back, lost) in zip(planned, found, strict=True):
        done.append(replace(row, written=back.write(lost)))
        output.progress(
            f"{len(done)} of {len(planned)} partitions, {sum(one.written for one in done):,} of "
            f"{sum(one.restorable for one in planned):,} keys are back"
        )
    return done


def _require_same_topics(admin: ClusterAdmin, partitions: Sequence[KeptPartition]) -> dict[str, dict[str, str]]:
    """Return the settings of each topic, among them `BATCH_SETTINGS`.

    Raises RefusedError if a topic is not there, or is another one than lost the keys: offsets mean nothing then. Also
    if its policy deletes records by age or size: those that are written back are as old as they were.
    """
    from tandem.spark_jobs.restore.live_write.live_transactions import (  # noqa: PLC0415 - Kafka is slow to import
        BATCH_SETTINGS,
    )

    names = sorted({one.topic for one in partitions})
    there = {info.name: info.topic_id for info in admin.topics(names, denied={})}
    for one in partitions:
        if there.get(one.topic) != one.key.topic_id:
            raise RefusedError(
                f"topic {one.topic} is not the one that lost the keys (topic id {one.key.topic_id}): it was deleted or "
                "recreated",
                code="TDM-R137",
                remedy=f"`tandem restore {one.topic} --generation {one.kept.number} --no-merge --suffix .restored` "
                "restores the copy beside it",
            )
    configs = admin.config(names, defaults=(_POLICY, *_RETENTION, *BATCH_SETTINGS))
    for name, config in configs.items():
        if "delete" in config[_POLICY] and any(config[limit] != _UNLIMITED for limit in _RETENTION):
            raise RefusedError(
                f"topic {name} has cleanup.policy={config[_POLICY]}: what is written back keeps its timestamps, and "
                "the brokers may delete it at once",
                code="TDM-R133",
                remedy="set cleanup.policy=compact, then run it again",
            )
    return configs


def _partition(lost: LostRecords, *, show_keys: bool) -> VanishedPartition:
    of = lost.partition
    return VanishedPartition(
        topic=of.topic,
        partition=of.key.partition,
        kept_in=of.kept.number,
        missing_in=of.missing_in.number,
        vanished=lost.vanished,
        newer=lost.vanished - lost.count,
        restorable=lost.count,
        written=0,
        sample=[
            key.decode(errors="backslashreplace") if show_keys else hashlib.sha256(key).hexdigest()[:_HASH_DIGITS]
            for key in lost.sample
        ],
    )


def _show(found: VanishedKeysDocument, form: OutputFormat, *, wide: bool) -> None:
    table = TopicRows(
        names=("topic", "kept in", "missing in"),
        groups=grouped(found.partitions, lambda one: (one.topic, one.kept_in, one.missing_in)),
        figures=("vanished", "newer", "to restore", "written", "sample"),
        sums=_figures,
        left=frozenset({"sample"}),
        extra=("missing in", "kept in", "newer"),
    ).table(wide=wide)
    output.show(kind="VanishedKeys", body=found, output=form, tables=[table, _outcome(found)], wide=wide)


def _outcome(found: VanishedKeysDocument) -> str:
    if not found.executed:
        return "nothing was written"
    restorable = sum(row.restorable for row in found.partitions)
    written = sum(row.written for row in found.partitions)
    left = restorable - written
    if not left:
        return "the keys are back; the kept copies stay until `tandem release`"
    return (
        f"{written:,} of {restorable:,} keys are back; {left:,} left alone, because others wrote them meanwhile, "
        "perhaps in transactions that were aborted since. Run it again before `tandem release`; until then the kept "
        "copies stay"
    )


def _figures(rows: Sequence[VanishedPartition]) -> tuple[object, ...]:
    sums = (sum(getattr(row, name) for row in rows) for name in ("vanished", "newer", "restorable", "written"))
    return (*sums, " ".join([key for row in rows for key in row.sample][:_SAMPLE]))
