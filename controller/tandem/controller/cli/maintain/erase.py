"""`tandem erase`: take all records of some keys out of every generation and checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.errors import ConfigError, ExitCode, RefusedError
from tandem.controller.cli.options.completion import topic_names
from tandem.controller.cli.options.consent import YesOption, consent
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.options.key_format import KeyFormat, decode_key, keys_in_file
from tandem.controller.cli.options.known_heads import warn_of_lost_heads
from tandem.controller.cli.options.spark_master import MasterOption, spark_session
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tandem.controller.config import Config
    from tandem.sink.store import ObjectStore
    from tandem.spark_jobs.erasure.erase_object import SearchedKeys
    from tandem.spark_jobs.erasure.live_keys import LiveKeys

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog=examples(
        "tandem erase customers --key customer-7 --dry-run -c a.yaml",
        "tandem erase customers --keys-file left.txt --purge-versions --yes -c a.yaml -o json",
    )
)
def erase(
    context: typer.Context,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic, also one that was deleted.", autocompletion=topic_names)
    ],
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="A key to erase; may be repeated.")
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option(
            "--keys-file",
            metavar="FILE",
            help="A file with a key in each line, written as --key is; an empty line is an error.",
        ),
    ] = None,
    key_format: Annotated[KeyFormat, typer.Option("--key-format", help="How the keys are written.")] = KeyFormat.UTF8,
    skip_live: Annotated[
        bool, typer.Option("--skip-live", help="Don't read the live topic to see whether it still has the keys.")
    ] = False,
    despite_live: Annotated[
        bool,
        typer.Option("--despite-live", help="Erase though the live topic has the keys: a turn reads them again."),
    ] = False,
    purge_versions: Annotated[
        bool,
        typer.Option(
            "--purge-versions",
            help="In a versioned bucket, also delete former versions of the topic's deleted objects and of journals.",
        ),
    ] = False,
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    master: MasterOption = "local[*,4]",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Erase all records of some keys from every generation and checkpoint: search, show the plan, ask, rewrite, prove.

    Values and tombstones go. Every moment stays restorable, without these keys; that can't be taken back. Write the
    tombstones to the live topic first: a key that it still has is refused, as the next turn would bring it back. Safe
    beside running instances. A run that was interrupted is repeated by giving the same command again.

    It proves that no copy has a record of the keys now. The live log may still have values that are older than the
    tombstones, and a generation that is built before the broker's log cleaner has removed them reads them again. Their
    partitions and number are shown; give the same command again when the cleaner has passed. Topics that were
    restored, exports and replicas are not searched: topics that restores created in this cluster are named.

    Exit code 0 if no copy has a record and the live log no value that could come back (not looked at with --skip-live,
    accepted with --despite-live), 3 if it has to be given again: former values in the live log, a generation that is
    still being read or cleared, an object that can't be read, a reader's pin. 5 if it is refused: the live topic has
    values of the keys, or there is no terminal and no --yes. --dry-run shows the plan and ends with 3 or 5 for the
    same reasons; records that a run would erase are no reason.
    """
    from tandem.controller.cli.maintain.erase_view import describe, show, tell  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.controller.config.derived_settings import store_settings  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.erasure.erase_object import SearchedKeys  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.erasure.erasure_job import ErasureJob  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair  # noqa: PLC0415 - likewise

    settings = load(context, config, overrides)
    wanted = SearchedKeys(keys=_keys(key or (), keys_file, key_format), level=settings.object.compression_level)
    address = StoreAddress(root=settings.store.root, settings=store_settings(settings))
    require_pair(address, settings.pair)
    warn_of_lost_heads(settings, address.open())
    with spark_session(master, name=f"tandem erase {topic}") as spark:
        live, restored = (None, None) if skip_live else _live(spark, settings, topic, wanted, address.open())
        refusal = None if live is None or not live.values or despite_live else _still_there(topic, live)
        if refusal is not None and not dry_run:
            raise refusal
        output.note(f"searching {settings.store.root}, pair {settings.pair}, for {len(wanted.keys):,} keys on {master}")
        job = ErasureJob(spark, address, settings.pair, topic, wanted, told=_tell_objects)
        report = job.plan(live, restored)
        if dry_run or not (report.plan.due or (purge_versions and report.versions.versions)):
            show(report, output_)
            if refusal is not None:
                raise refusal
            unknown = purge_versions and report.versions.error is not None
            if report.plan.left or report.plan.errors or unknown or (report.pending is not None and not despite_live):
                raise typer.Exit(ExitCode.UNHEALTHY)
            return
        describe(report, output_, purge=purge_versions)
        consent(f"Erase {report.plan.records:,} records of {topic} for good?", yes=yes)
        report = job.carry_out(report, purge=purge_versions, tell=tell)
    show(report, output_)
    over = report.result is not None and report.result.clean and (report.pending is None or despite_live)
    if not over or (purge_versions and report.versions.error is not None):
        raise typer.Exit(ExitCode.UNHEALTHY)


def _tell_objects(done: int, of: int) -> None:
    output.progress(f"{done} of {of} objects")


def _keys(texts: list[str] | tuple[()], file: Path | None, form: KeyFormat) -> frozenset[bytes]:
    """Return the stored bytes of all keys. ConfigError if there is none, or one is not in the format."""
    found = {decode_key("--key", text, form) for text in texts}
    if file is not None:
        found.update(keys_in_file("--keys-file", file, form))
    if not found:
        raise ConfigError("no key is named", code="TDM-T015", remedy="add --key KEY, or --keys-file FILE")
    return frozenset(found)


def _live(
    spark: SparkSession, settings: Config, topic: str, wanted: SearchedKeys, store: ObjectStore
) -> tuple[LiveKeys | None, tuple[str, ...]]:
    from tandem.spark_jobs.erasure.live_keys import find_restored_topics, search_live_topic  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress  # noqa: PLC0415 - likewise

    output.note(f"reading the live topic {topic}")
    cluster = ClusterAddress(props=dict(settings.kafka.reveal()), batch_limit=settings.memory.largest_batch)
    return search_live_topic(spark, cluster, topic, wanted), find_restored_topics(store, settings.pair, cluster)


def _still_there(topic: str, live: LiveKeys) -> RefusedError:
    return RefusedError(
        f"the live topic {topic} still has values of {live.values:,} of the keys: a turn would bring them back",
        code="TDM-T016",
        remedy="write their tombstones first; or erase the present copies all the same with --despite-live",
    )
