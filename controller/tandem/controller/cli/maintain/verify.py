"""`tandem verify`: compare stored objects with their chains, with the live topics, or with another generation."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.chain.integers import number_in
from tandem.backup_avro.chain.layout import LAST_GENERATION
from tandem.backup_avro.documents.connector_layout import PAIR
from tandem.backup_avro.errors import ConfigError, ExitCode, RefusedError, TandemError
from tandem.controller.cli.maintain.verify_files import verify_files
from tandem.controller.cli.options import backup_place, layout_options
from tandem.controller.cli.options.completion import generation_numbers, generation_pairs, topic_names
from tandem.controller.cli.options.consent import YesOption, asker
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.options.known_heads import warn_of_lost_heads
from tandem.controller.cli.options.spark_master import MasterOption, spark_session
from tandem.controller.cli.output import output
from tandem.controller.cli.output.keep_outcome import keep_outcome
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table, WideOption
from tandem.sink.process import safe_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from tandem.backup_avro.chain.heads import Head
    from tandem.backup_avro.documents.outcome import JobOutcome, JobScope
    from tandem.controller.config import Config
    from tandem.spark_jobs.reading.object_reader import StoreAddress
    from tandem.spark_jobs.verify.compare_keys import CompareResult
    from tandem.spark_jobs.verify.verify_objects import VerifyProgress, VerifyRequest
    from tandem.spark_jobs.verify.verify_plan import Repair, Sampling, VerifyResult

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_SEEDS = 1 << 32


@app.command(
    epilog="\b\nExamples:\n  tandem verify -c tandem.yaml --sample 5%\n"
    "  tandem verify -c tandem.yaml --against-topic --topics customers -o json\n"
    "  tandem verify -c tandem.yaml --against-generation 6,7"
)
def verify(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            min=1,
            help="Only this one; else all that are not cleared.",
            autocompletion=generation_numbers,
        ),
    ] = None,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="N%", help="Read a random share of the objects, by bytes.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="The same sample again.")] = None,
    against_topic: Annotated[
        bool, typer.Option("--against-topic", help="Compare the latest record of each key with the live topics.")
    ] = False,
    named_topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC...",
            help="Only these, with --against-topic or --layout connector.",
            autocompletion=topic_names,
        ),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", metavar="A,B", help="The same as TOPIC.", autocompletion=topic_names),
    ] = None,
    against_generation: Annotated[
        str | None,
        typer.Option(
            "--against-generation",
            metavar="N[,M]",
            help="Compare two generations; M: what a restore uses.",
            autocompletion=generation_pairs,
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Ask for a new generation if the newest one has a mismatch that the topics don't share."
        ),
    ] = False,
    yes: YesOption = False,
    require_signature: Annotated[
        bool,
        typer.Option(
            "--require-signature", help="As signing.require: an object without a trusted signature counts as damaged."
        ),
    ] = False,
    expect_head: backup_place.ExpectHeadOption = None,
    expect_head_from_topic: Annotated[
        bool,
        typer.Option("--expect-head-from-topic", help="The same with what the instances have published on Kafka."),
    ] = False,
    root: backup_place.RootOption = None,
    pair: backup_place.PairOption = None,
    layout: layout_options.LayoutOption = layout_options.FileLayout.TANDEM,
    empty_as_null: layout_options.EmptyAsNullOption = False,
    instance: layout_options.InstanceOption = None,
    prefer: layout_options.PreferOption = None,
    leave_out: layout_options.LeaveOutOption = None,
    index: layout_options.IndexOption = None,
    master: MasterOption = "local[*,4]",
    output_: OutputOption = OutputFormat.TABLE,
    wide: WideOption = False,
) -> None:
    """Read every object of the backup and compare it with its chain; says of every mismatch what and where it is.

    Hash links and rules of the chains; of each object presence, size, SHA-256, every record's place and order, counts;
    of each partition that nothing is there twice and nothing lies outside what was read. --against-topic and
    --against-generation compare keys instead. The result is kept for `tandem status`. Exit code 3 on any mismatch, 5
    where --repair is refused: the topic no longer has some records of the backup, so a new generation would lack them.
    """
    from tandem.controller.config.derived_settings import store_settings  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.verify.verify_objects import VerifyRequest  # noqa: PLC0415 - likewise

    sampling = _sampling(sample, seed)
    numbers = None if against_generation is None else _numbers(against_generation)
    names = backup_place.chosen_topics(named_topics, topics) or ()
    files = layout_options.reading(
        layout_options.LayoutArguments(
            layout=layout,
            empty_as_null=empty_as_null,
            instance=instance,
            prefer=prefer,
            leave_out=leave_out,
            index=index,
        )
    )
    if files is not None:
        layout_options.refuse_with(
            {
                "--generation": generation,
                "--sample": sample,
                "--against-topic": against_topic,
                "--against-generation": against_generation,
                "--repair": repair,
                "--require-signature": require_signature,
                "--expect-head": expect_head,
                "--expect-head-from-topic": expect_head_from_topic,
                "--pair": pair,
            }
        )
        place, settings, _, _ = backup_place.parts_of(
            backup_place.of_store(context, config, overrides, root=root, pair=PAIR)
        )
        address = StoreAddress(root=place, settings=settings, connector=files)
        if not verify_files(address, names or None, master, output_, index=index):
            raise typer.Exit(ExitCode.UNHEALTHY)
        return
    _refuse_mixtures(
        {
            "--against-topic": against_topic,
            "--against-generation": numbers is not None,
            "--sample": sampling is not None,
            "--generation": generation is not None,
        },
        names,
        heads=bool(expect_head) or expect_head_from_topic,
        yes=yes and not repair,
    )
    unless = "what the store alone answers" if against_topic or expect_head_from_topic or repair else None
    loaded = backup_place.configured(context, config, overrides, root=root, pair=pair, unless=unless)
    settings = store_settings(loaded)
    if require_signature:
        if not settings.trusted:
            raise ConfigError(
                "--require-signature: no key is trusted", code="TDM-V008", remedy="set signing.trusted to public keys"
            )
        settings = replace(settings, require_signatures=True)
    heads = backup_place.expected(expect_head) + (_published(loaded) if expect_head_from_topic else ())
    address = StoreAddress(root=loaded.store.root, settings=settings)
    output.note(f"verifying pair {loaded.pair} in {loaded.store.root} on {master}")
    began = time.monotonic()
    require_pair(address, loaded.pair)
    heads += warn_of_lost_heads(loaded, address.open())
    request = VerifyRequest(
        address=address,
        pair=loaded.pair,
        generation=generation,
        sampling=sampling,
        known=_known(address, loaded.pair),
        heads=heads,
    )
    keys = against_topic or numbers is not None
    try:
        with spark_session(master, name=f"tandem verify {loaded.pair}") as spark:
            if keys:
                found = _compare(spark, address, loaded, numbers=numbers, topics=names or None)
            else:
                found = _read(spark, request)
    except TandemError as error:
        what = "the latest record of each key" if keys else _what(request)
        _keep_failed(address, loaded.pair, what, error, time.monotonic() - began)
        raise
    seconds = round(time.monotonic() - began, 1)
    keep_outcome(address.open(), partial(_outcome, found, loaded.pair, seconds))
    repaired = _repair(loaded, found, yes=yes) if repair else None
    body = replace(found.result, seconds=seconds, repair=repaired)
    output.show(kind="Verify", body=body, output=output_, tables=found.tables(seconds, repaired), wide=wide)
    if not found.clean:
        raise typer.Exit(ExitCode.REFUSED if repair and found.lost else ExitCode.UNHEALTHY)


# --- options ----------------------------------------------------------------------------------------------------------


def _sampling(sample: str | None, seed: int | None) -> Sampling | None:
    from tandem.spark_jobs.verify.verify_plan import Sampling  # noqa: PLC0415 - loaded when the command runs, not for --help

    if sample is None:
        if seed is not None:
            raise ConfigError("--seed requires --sample", code="TDM-V009", remedy="add --sample, e.g. --sample 5%")
        return None
    try:
        percent = float(sample.removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise ConfigError(
            f"--sample {sample!r} is no share", code="TDM-V010", remedy="write more than 0% and at most 100%, e.g. 5%"
        )
    return Sampling(percent=percent, seed=secrets.randbelow(_SEEDS) if seed is None else seed)


def _numbers(text: str) -> tuple[int, ...]:
    numbers = [number_in(part, most=LAST_GENERATION) for part in text.split(",")]
    if len(numbers) > 2 or not all(numbers):
        raise ConfigError(
            f"--against-generation {text!r} is not N or N,M", code="TDM-V011", remedy="e.g. --against-generation 6,7"
        )
    return tuple(number for number in numbers if number)


def _refuse_mixtures(given: Mapping[str, bool], names: Sequence[str], *, heads: bool, yes: bool) -> None:
    chosen = [name for name, there in given.items() if there]
    if len(chosen) > 1 and chosen != ["--sample", "--generation"]:
        raise ConfigError(
            f"{' and '.join(chosen)} are not allowed together", code="TDM-V012", remedy="give one of them"
        )
    if names and not given["--against-topic"]:
        raise ConfigError(
            "--topics requires --against-topic", code="TDM-V013", remedy="leave it out: all chains are read"
        )
    if heads and (given["--against-topic"] or given["--against-generation"]):
        raise ConfigError(
            "--expect-head requires a verification that reads chains", code="TDM-V014", remedy="leave out --against-…"
        )
    if yes:
        raise ConfigError(
            "--yes requires --repair", code="TDM-V015", remedy="leave it out: only --repair asks for consent"
        )


def _published(loaded: Config) -> tuple[Head, ...]:
    from tandem.controller.status.outside_view import published_heads  # noqa: PLC0415 - loaded when the command runs, not for --help

    heads = published_heads(loaded)
    output.note(f"expecting {', '.join(map(str, heads))}")
    return heads


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The result of either kind of run. `mends`: a new generation would repair the findings; else `why` gives a reason.

    `lost` is the number of records that only the backup holds; if it is not 0, no new generation is requested, since
    that would lack them, and the generation that holds them would be cleared. `hurt` are the generations with findings.
    """

    result: VerifyResult | CompareResult
    what: str
    scope: JobScope
    hurt: tuple[int, ...]
    mends: bool
    why: str
    lost: int = 0

    @property
    def clean(self) -> bool:
        return self.result.clean

    def tables(self, seconds: float, repaired: Repair | None) -> Iterable[Table | str]:
        from tandem.controller.cli.maintain.verify_view import compared_tables, verified_tables  # noqa: PLC0415 - when it runs
        from tandem.spark_jobs.verify.compare_keys import CompareResult  # noqa: PLC0415 - likewise

        if isinstance(self.result, CompareResult):
            yield from compared_tables(self.result, seconds)
        else:
            yield from verified_tables(self.result, seconds)
        if repaired is not None:
            yield f"repair: {repaired.message}"


def _read(spark: SparkSession, request: VerifyRequest) -> _Found:
    from tandem.backup_avro.documents.outcome import JobScope  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.verify.verify_objects import verify_objects as run  # noqa: PLC0415 - likewise

    result = run(spark, request, tell=_tell)
    complete = [one.generation for one in result.generations if one.state in {"complete", "sealed"}]
    newest = max(complete, default=0)
    hurt = sorted({finding.generation for finding in result.findings})
    mends = any(number >= newest for number in hurt)
    whole, part = (
        (JobScope.ALL, JobScope.SAMPLE) if request.generation is None else (JobScope.GENERATION, JobScope.PART)
    )
    return _Found(
        result=result,
        scope=whole if request.sampling is None else part,
        hurt=tuple(hurt),
        what=_what(request),
        mends=mends,
        why=f"the mismatches are in generation {', '.join(map(str, hurt))}; the newest complete one, {newest}, which a "
        "restore uses, has none, and the older one goes with its turn",
    )


def _what(request: VerifyRequest) -> str:
    what = "all chains and objects" if request.generation is None else f"generation {request.generation}"
    sampling = request.sampling
    return what if sampling is None else f"{what}, of the objects a sample of {sampling.percent:g}%"


def _compare(
    spark: SparkSession,
    address: StoreAddress,
    loaded: Config,
    *,
    numbers: Sequence[int] | None,
    topics: Sequence[str] | None,
) -> _Found:
    from tandem.backup_avro.documents.outcome import JobScope  # noqa: PLC0415 - when the command runs
    from tandem.controller.cli.maintain.verify_view import only_copy  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.verify.compare_keys import against_generation, against_topic  # noqa: PLC0415 - likewise

    if numbers is None:
        cluster = ClusterAddress(props=dict(loaded.kafka.reveal()), batch_limit=loaded.memory.largest_batch)
        result = against_topic(spark, address, loaded.pair, cluster, topics=topics, tell=_tell_partitions)
        what = f"the latest record of each key of {', '.join(topics) if topics else 'all topics'}, against the topics"
        mends = any(kind != "returned" for kind in result.counts)
    else:
        result = against_generation(spark, address, loaded.pair, numbers, tell=_tell_partitions)
        what = f"the latest record of each key, {result.against}"
        mends = bool(result.counts)
    why = "what was found is in the topics themselves, or could not be read: reading them again does not mend it"
    if result.lost:
        mends, why = False, only_copy(result)
    return _Found(
        result=result,
        scope=JobScope.KEYS,
        hurt=() if result.clean else (result.generation,),
        what=what,
        mends=mends,
        why=why,
        lost=result.lost,
    )


def _tell(progress: VerifyProgress) -> None:
    output.progress(
        f"{progress.objects} of {progress.of_objects} objects, "
        f"{output.size(progress.bytes)} of {output.size(progress.of_bytes)}"
    )


def _tell_partitions(done: int, of: int) -> None:
    output.progress(f"{done} of {of} partitions")


# --- outcomes and repair ----------------------------------------------------------------------------------------------


def _outcome(found: _Found, pair: str, seconds: float, at: int) -> JobOutcome:
    from tandem.backup_avro.documents.outcome import GENERATIONS, JobKind, JobOutcome  # noqa: PLC0415 - loaded when the command runs
    from tandem.spark_jobs.verify.compare_keys import CompareResult  # noqa: PLC0415 - likewise

    result = found.result
    if isinstance(result, CompareResult):
        count = sum(sum(one.counts.values()) + (one.error is not None) for one in result.partitions)
        records, size, generations = sum(one.records[0] for one in result.partitions), 0, {}
    else:
        count = len(result.findings)
        records = sum(one.records for one in result.generations)
        size = sum(one.bytes for one in result.generations)
        generations = {one.generation: one.seq for one in result.generations}
    return JobOutcome(
        kind=JobKind.VERIFY,
        pair=pair,
        at=at,
        by=asker(),
        clean=result.clean,
        what=found.what,
        findings=count,
        records=records,
        bytes=size,
        # Only the entries that this run has read: an outcome that claims too much goes when its own object is deleted.
        generations=dict(sorted(generations.items())[-GENERATIONS:]),
        phases={"verify": seconds},
        scope=found.scope,
        hurt=found.hurt,
    )


def _keep_failed(address: StoreAddress, pair: str, what: str, error: TandemError, seconds: float) -> None:
    """Store the outcome of a run that failed, except for wrong options or a refusal. It settles no earlier finding."""
    from tandem.backup_avro.documents.outcome import JobKind, JobOutcome, JobScope  # noqa: PLC0415 - loaded when the command runs

    if isinstance(error, ConfigError | RefusedError):
        return
    why = safe_text.redact(str(error))
    keep_outcome(
        address.open(),
        lambda at: JobOutcome(
            kind=JobKind.VERIFY,
            pair=pair,
            at=at,
            by=asker(),
            clean=False,
            what=what,
            findings=0,
            records=0,
            bytes=0,
            phases={"until it failed": seconds},
            error=why,
            scope=JobScope.PART,
        ),
    )


def _known(address: StoreAddress, pair: str) -> Mapping[int, int]:
    """Return generation -> last chain entry that earlier runs have read, as far as their outcomes are stored."""
    from tandem.backup_avro.documents.outcome import JobKind  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.sink.store.chain import outcomes  # noqa: PLC0415 - likewise

    found: dict[int, int] = {}
    for before in outcomes.newest_first(address.open(), pair, JobKind.VERIFY):
        for number, seq in before.generations.items():
            found[number] = max(found.get(number, 0), seq)
    return found


def _repair(loaded: Config, found: _Found, *, yes: bool) -> Repair:
    """Request a new generation if that repairs the findings; return what was done, or why nothing was. Deletes nothing.

    An error of the request is printed and returned in the result, not raised.
    """
    from tandem.controller.cli.handover.failover import ask_for_a_new_one  # noqa: PLC0415 - loaded when the command runs
    from tandem.controller.status.outside_view import store_for_looking  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.verify.verify_plan import Repair  # noqa: PLC0415 - likewise

    if found.clean:
        return Repair(asked=False, message="nothing is to be repaired")
    if not found.mends:
        return Repair(asked=False, message=f"nothing was asked for: {found.why}")
    store = store_for_looking(loaded)
    try:
        message = ask_for_a_new_one(loaded, store, reason="verify --repair found mismatches", yes=yes)
    except TandemError as error:
        output.fail(str(error.args[0]) if error.args else type(error).__name__, code=error.code, remedy=error.remedy)
        return Repair(asked=False, message=f"nothing was asked for: {error}")
    finally:
        store.close()
    return Repair(
        asked=True,
        request_id=message.request_id,
        generation=message.generation,
        target=message.target,
        message=(
            f"{message.target} was asked to build generation {message.generation} from the topics; `tandem status` "
            "shows how it goes. It takes the topics as they are: what only the backup has, such as a deleted topic or "
            "the states of the past, does not come back by it. Nothing was deleted"
        ),
    )
