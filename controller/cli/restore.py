"""`tandem restore`: from the store back into Kafka."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backup_avro.errors import ConfigError, ExitCode
from controller import log
from controller.cli import output
from controller.cli.context import CONFIG_VARIABLE, ConfigOption, SetOption, invocation, load
from controller.cli.output import OutputFormat, OutputOption, Table

if TYPE_CHECKING:
    from sink.object_store import StoreSettings
    from spark_jobs.restore import Options, Prepared, Report, Told

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_RESTORE = "Restore"
_SHOWN = 50
_EVERY_S = 5.0


@app.command()
def restore(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    topics: Annotated[
        list[str] | None, typer.Option("--topics", metavar="A,B", help="Only these; else all of the generation.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="TOPIC", help="Target of the one topic.")] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--map", metavar="OLD=NEW", help="Target of one topic; may be repeated.")
    ] = None,
    suffix: Annotated[
        str, typer.Option("--suffix", help="Appended to all names that --map does not give, e.g. .restored")
    ] = "",
    generation: Annotated[
        int | None, typer.Option("--generation", min=1, help="Rest on this one; else on the newest sound one.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="ID", help="Exactly this named cut; else the newest state.")
    ] = None,
    root: Annotated[
        str | None, typer.Option("--root", help="Store, instead of the configuration's store.root.")
    ] = None,
    pair: Annotated[str | None, typer.Option("--pair", help="Pair, instead of the configuration's.")] = None,
    target_servers: Annotated[
        str | None,
        typer.Option("--target-bootstrap-servers", metavar="HOST:PORT", help="Target cluster, else that of `kafka:`."),
    ] = None,
    target_config: Annotated[
        Path | None, typer.Option("--target-config", help="YAML file of client properties for the target cluster.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", min=1, help="For new topics; else as recorded.")
    ] = None,
    keep_load_config: Annotated[
        bool, typer.Option("--keep-load-config", help="Leave topics as they were loaded: nothing compacted or deleted.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Agree that the recorded retention deletes old records at once.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; touch nothing.")] = False,
    master: Annotated[str, typer.Option("--master", help="Spark master.")] = "local[*,4]",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Restore topics from the store into Kafka: plan, create, load, verify by count and hash, set the recorded config.

    A run that was ended, by whatever, is resumed by giving the same command again: nothing is lost and nothing is
    there twice. A target that holds anything else is refused (exit code 5). Exit code 3: the target is not what the
    backup is.
    """
    from sink.chain.reader import ChainReader  # noqa: PLC0415 - loaded when the command runs, not for --help
    from spark_jobs import restore as job  # noqa: PLC0415 - likewise
    from spark_jobs.read import StoreAddress  # noqa: PLC0415 - likewise
    from spark_jobs.restore_target import Target  # noqa: PLC0415 - likewise
    from spark_jobs.session import session  # noqa: PLC0415 - likewise

    place, settings, name, configured = _backup(context, config, overrides, root=root, pair=pair)
    target = Target(_target(configured, target_servers, target_config))
    options = _options(
        topics=topics,
        to=to,
        rename=rename,
        suffix=suffix,
        generation=generation,
        checkpoint=checkpoint,
        keep_load_config=keep_load_config,
        consent=yes,
        replication_factor=replication_factor,
    )
    address = StoreAddress(root=place, settings=settings)
    reader = ChainReader(address.open(), name)
    if dry_run:
        _show_plan(job.prepare(reader, target, options), options, output_)
        return
    # Before Spark starts: most of what can be refused is refused at once.
    prepared = job.prepare(reader, target, options)
    job.check_consent(prepared.plan, options, now=_now())
    for warning in prepared.plan.warnings():
        output.warn(warning)
    output.note(f"restoring pair {name} from generation {prepared.plan.generation}, entry {prepared.plan.seq}")
    began = time.monotonic()
    try:
        with session(master, name=f"tandem restore {name}") as spark, _telling() as tell:
            report = job.restore(spark, address, reader, target, options, now=_now, tell=tell)
    except KeyboardInterrupt:
        output.note("interrupted; the same command, given again, goes on from here")
        raise
    _show_report(report, time.monotonic() - began, output_)
    if report.mismatches:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _now() -> int:
    return round(time.time() * 1000)


def _backup(
    context: typer.Context,
    config: Path | None,
    overrides: Sequence[str] | None,
    *,
    root: str | None,
    pair: str | None,
) -> tuple[str, StoreSettings, str, Mapping[str, Any] | None]:
    """Return the store's root and settings, the pair, and the configured cluster (None: there is no configuration)."""
    from sink.object_store import StoreSettings  # noqa: PLC0415 - loaded when the command runs, not for --help

    given = config or invocation(context).config or os.environ.get(CONFIG_VARIABLE) or overrides
    if not given and root is not None and pair is not None:
        return root, StoreSettings(), pair, None
    from controller.wiring import store_settings  # noqa: PLC0415 - likewise

    loaded = load(context, config, overrides)
    return root or loaded.store.root, store_settings(loaded), pair or loaded.pair, loaded.kafka.reveal()


def _target(configured: Mapping[str, Any] | None, servers: str | None, file: Path | None) -> dict[str, Any]:
    """Return the target's client properties: the file's, else just the servers, else the configured cluster's."""
    if file is not None:
        return {**_properties(file, servers), **({"bootstrap.servers": servers} if servers else {})}
    if servers is not None:
        return {"bootstrap.servers": servers}
    if configured is None:
        raise ConfigError(
            "the target cluster is not named", remedy="add --target-bootstrap-servers or --target-config, or --config"
        )
    return dict(configured)


def _properties(file: Path, servers: str | None) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - only needed here
    from pydantic import SecretStr, ValidationError  # noqa: PLC0415 - likewise

    from controller.config.kafka import KafkaProperties, is_secret_file  # noqa: PLC0415 - likewise

    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--target-config {file}: can't be read: {type(error).__name__}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--target-config {file}: not YAML") from error
    if isinstance(document, dict) and isinstance(document.get("kafka"), dict):
        document = document["kafka"]
    if not isinstance(document, dict):
        raise ConfigError(
            f"--target-config {file}: client properties were expected, such as bootstrap.servers: host:port"
        )
    properties = {"bootstrap.servers": servers} if servers else {}
    for key, value in document.items():
        if is_secret_file(str(key)):
            try:
                properties[str(key).removesuffix(".file")] = Path(value).read_text(encoding="utf-8").strip()
            except (OSError, ValueError, TypeError) as error:
                raise ConfigError(f"--target-config {file}: {key} names a file that can't be read") from error
        else:
            properties.setdefault(str(key), value)
    try:
        found = KafkaProperties.model_validate(properties)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc']))} {item['msg']}" for item in error.errors(include_input=False)
        )
        raise ConfigError(f"--target-config {file}: {problems}") from error
    log.register_secrets(value.get_secret_value() for value in found.root.values() if isinstance(value, SecretStr))
    return found.reveal()


def _options(
    *,
    topics: Sequence[str] | None,
    to: str | None,
    rename: Sequence[str] | None,
    suffix: str,
    generation: int | None,
    checkpoint: str | None,
    keep_load_config: bool,
    consent: bool,
    replication_factor: int | None,
) -> Options:
    from spark_jobs.restore import Options  # noqa: PLC0415 - loaded when the command runs, not for --help
    from spark_jobs.restore_plan import Naming  # noqa: PLC0415 - likewise

    if to is not None and (rename or suffix):
        raise ConfigError("--to goes with neither --map nor --suffix", remedy="give one of them")
    if checkpoint is not None and generation is not None:
        raise ConfigError("--checkpoint goes without --generation", remedy="a checkpoint knows its generation")
    renamed: dict[str, str] = {}
    for item in rename or ():
        old, found, new = item.partition("=")
        if not (old and found and new):
            raise ConfigError(f"--map {item!r} is not OLD=NEW")
        renamed[old] = new
    names = tuple(name for item in topics or () for name in item.split(",") if name)
    return Options(
        naming=Naming(only=to, renamed=renamed, suffix=suffix),
        topics=names or None,
        generation=generation,
        checkpoint=checkpoint,
        keep_load_config=keep_load_config,
        consent=consent,
        replication_factor=replication_factor,
    )


def _show_plan(prepared: Prepared, options: Options, form: OutputFormat) -> None:
    from spark_jobs.restore import describe  # noqa: PLC0415 - loaded when the command runs, not for --help

    document = describe(prepared, now=_now())
    output.show(kind=_RESTORE, body={"dryRun": True, **document}, output=form, tables=_plan_tables(document, options))


def _plan_tables(document: Mapping[str, Any], options: Options) -> Iterator[Table | str]:
    figures = ("objects", "records", "tombstones", "bytes")
    yield Table(
        columns=("topic", "target", "partition", *figures),
        rows=[
            (
                topic["source"],
                topic["target"],
                item["partition"],
                item["objects"],
                item["records"] if item["exact"] else f"up to {item['records']}",
                item["tombstones"],
                output.size(item["bytes"]),
            )
            for topic in document["topics"]
            for item in topic["partitions"]
        ],
        right=frozenset({"partition", *figures}),
    )
    lines = [f"rests on generation {document['generation']}, entry {document['seq']}; plan {document['hash'][:16]}"]
    if document["resumes"]:
        lines.append(f"resumes a run that did not end: {document['present']} records are there already")
    for topic in document["topics"]:
        lines.extend(_plan_lines(topic, options))
    lines.extend(f"warning: {text}" for text in document["warnings"])
    yield "\n".join(lines)


def _plan_lines(topic: Mapping[str, Any], options: Options) -> Iterator[str]:
    name = topic["target"]
    yield f"{name}: {'exists and is prepared' if topic['targetExists'] else 'is created'}; recorded config:"
    yield "  " + (", ".join(f"{key}={value}" for key, value in topic["config"].items()) or "none")
    for key, values in topic["configDifferences"].items():
        yield f"  {key} is {values['present']} now, recorded is {values['recorded']}"
    expire = topic["expireAtOnce"]
    if expire["atMost"] and not options.keep_load_config:
        yield (
            f"  the recorded retention would delete {expire['surely']} to {expire['atMost']} records at once: "
            "agree with --yes, or add --keep-load-config"
        )


def _show_report(report: Report, seconds: float, form: OutputFormat) -> None:
    loaded = report.records - report.resumed
    ends = {(topic.target, item.key.partition): item.end for topic in report.plan.topics for item in topic.partitions}
    body = {
        "dryRun": False,
        "pair": report.plan.pair,
        "generation": report.plan.generation,
        "seq": report.plan.seq,
        "hash": report.plan.hash,
        "verified": not report.mismatches,
        "records": report.records,
        "resumed": report.resumed,
        "seconds": round(seconds, 1),
        "loadSeconds": round(report.load_seconds, 1),
        "checkSeconds": round(report.check_seconds, 1),
        "recordsPerSecond": round(loaded / report.load_seconds) if report.load_seconds else 0,
        "topics": [
            {
                "source": topic.source,
                "target": topic.target,
                "records": topic.records,
                "config": dict(topic.config),
                "notes": topic.notes,
                "partitions": [
                    {
                        "partition": item.partition,
                        "end": ends[topic.target, item.partition],
                        "records": item.records,
                        "tombstones": item.tombstones,
                        "nullKeys": item.null_keys,
                        "sha256": item.hash,
                        "resumed": item.resumed,
                        "seconds": round(item.seconds, 1),
                    }
                    for item in topic.partitions
                ],
            }
            for topic in report.topics
        ],
        "warnings": report.plan.warnings(),
        "mismatches": [
            {
                "target": item.target,
                "partition": item.partition,
                "records": item.records,
                "expectedRecords": item.expected_records,
                "sha256": item.hash,
                "expectedSha256": item.expected_hash,
            }
            for item in report.mismatches
        ],
    }
    output.show(kind=_RESTORE, body=body, output=form, tables=_report_tables(report, seconds))


def _report_tables(report: Report, seconds: float) -> Iterator[Table | str]:
    figures = ("records", "tombstones", "no key", "resumed")
    yield Table(
        columns=("topic", "target", "partition", *figures),
        rows=[
            (topic.source, topic.target, item.partition, item.records, item.tombstones, item.null_keys, item.resumed)
            for topic in report.topics
            for item in topic.partitions
        ],
        right=frozenset({"partition", *figures}),
    )
    notes = [f"{topic.target}: {note}" for topic in report.topics for note in topic.notes]
    if notes:
        yield "\n".join(notes)
    if report.mismatches:
        yield Table(
            title="The target is not what the backup is; it keeps its loading config",
            columns=("target", "partition", "records", "expected", "hash", "expected hash"),
            rows=[
                (
                    item.target,
                    item.partition,
                    item.records,
                    item.expected_records,
                    item.hash[:16],
                    item.expected_hash[:16],
                )
                for item in report.mismatches[:_SHOWN]
            ],
        )
        return
    rate = (report.records - report.resumed) / report.load_seconds if report.load_seconds else 0.0
    yield (
        f"restored and verified {report.records} records in {output.duration(seconds)} "
        f"(load {output.duration(report.load_seconds)}, {rate:.0f} records/s; "
        f"verify {output.duration(report.check_seconds)})"
    )


def _telling() -> Any:  # noqa: ANN401 - a context manager of a class that is defined when the command runs
    import sys  # noqa: PLC0415 - only needed here

    return _bar() if output.is_fancy(sys.stderr) else _lines()


def _lines() -> Any:  # noqa: ANN401 - as above
    from contextlib import nullcontext  # noqa: PLC0415 - only needed here

    from spark_jobs.restore import Told  # noqa: PLC0415 - loaded when the command runs, not for --help

    class Lines(Told):
        """A line now and then."""

        def __init__(self) -> None:
            self._last = 0.0

        def phase(self, text: str) -> None:
            output.note(text)

        def records(self, done: int, of: int) -> None:
            now = time.monotonic()
            if now - self._last >= _EVERY_S:
                self._last = now
                output.note(f"{done} of {of} records")

    return nullcontext(Lines())


def _bar() -> Any:  # noqa: ANN401 - as above
    from contextlib import contextmanager  # noqa: PLC0415 - only needed here

    import rich.console  # noqa: PLC0415 - only needed on a terminal
    import rich.progress  # noqa: PLC0415 - likewise

    from spark_jobs.restore import Told  # noqa: PLC0415 - loaded when the command runs, not for --help

    class Bar(Told):
        """A progress bar."""

        def __init__(self, progress: rich.progress.Progress) -> None:
            self._progress = progress
            self._task = progress.add_task("starting", total=None)

        def phase(self, text: str) -> None:
            self._progress.update(self._task, description=text, total=None)

        def records(self, done: int, of: int) -> None:
            self._progress.update(self._task, completed=done, total=of)

    @contextmanager
    def shown() -> Iterator[Told]:
        columns: Iterable[Any] = (
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
        )
        console = rich.console.Console(stderr=True)
        with rich.progress.Progress(*columns, console=console, transient=True) as progress:
            yield Bar(progress)

    return shown()
