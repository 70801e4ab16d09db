"""`tandem verify`: read every object that the chains list, in Spark tasks, and compare it with its chain entry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.errors import ConfigError, DamagedError, RefusedError
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.store import ObjectMissingError, ObjectStore, StoreDeniedError, StoreTransientError
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.intact_state import IntactState, newest_intact
from tandem.spark_jobs.reading.object_reader import StoreAddress, get_whole, require_pair
from tandem.spark_jobs.spark.job_progress import reporting
from tandem.spark_jobs.spark.prefix_listing import list_prefixes
from tandem.spark_jobs.spark.task_attempts import is_last
from tandem.spark_jobs.spark.worker_log import logged
from tandem.spark_jobs.verify import verify_plan
from tandem.spark_jobs.verify.verify_plan import (
    ObjectCheck,
    ObjectResult,
    Sampling,
    VerifyFault,
    VerifyFinding,
    VerifyResult,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyProgress:
    """The progress of a run: objects and bytes read, and the totals."""

    objects: int
    of_objects: int
    bytes: int
    of_bytes: int


Tell = Callable[[VerifyProgress], None]

_MOST_NOT_GIVEN = 10
"""The most objects of one task that the store may fail to return; more of them are treated as an outage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """The objects to verify: those of one generation, or of all that are not cleared, reduced by `sampling`.

    `heads` are entries that must exist, of any generation. `known` maps a generation to the entry up to which its chain
    was read before: this is the only evidence that the end of a chain was deleted.
    """

    address: StoreAddress
    pair: str
    generation: int | None = None
    sampling: Sampling | None = None
    known: Mapping[int, int] = field(default_factory=dict)
    heads: Collection[Head] = ()


def verify_objects(spark: SparkSession, request: VerifyRequest, *, tell: Tell | None = None) -> VerifyResult:
    """Verify the requested objects and chains. Pins keep the objects from being deleted meanwhile.

    Chains are always read in full. Generations that are being cleared are skipped. Raises ConfigError if the pair or
    the generation does not exist; a damaged chain is a finding, and the other generations are still verified.
    """
    address, pair, generation, sampling = request.address, request.pair, request.generation, request.sampling
    heads, known = request.heads, request.known
    store = address.open()
    require_pair(address, pair)
    look = ChainReader(store, pair)
    numbers = [generation] if generation is not None else numbers_of(look)
    with pins.hold_pins(store, pair, numbers, owner="verify"):
        # This comes before the chains are read whole: the reader that found the numbers is released first, to save
        # memory.
        chains = [] if generation is not None else lost_of(look, ()) + missing_heads(look, heads)
        del look
        reader = ChainReader(store, pair, whole=True)
        states, found = load(reader, numbers, strict=generation is not None)
        chains += found
        if generation is not None:
            chains += [finding for finding in lost_of(reader, states) if finding.generation == generation]
            chains += missing_heads(reader, heads)
        wanted = [state for state in states if state.clearing is None and not state.gone]
        skipped = {
            state.number: "it is cleared" if state.gone else "it is being cleared"
            for state in states
            if state not in wanted
        }
        chains += [finding for state in states for finding in verify_plan.check_length(state, known)]
        if generation is not None and skipped:
            raise RefusedError(
                f"generation {generation}: {skipped[generation]}", code="TDM-V005", remedy="choose another one"
            )
        checks = verify_plan.plan_objects(wanted)
        # An object that should be encrypted and is not is a finding; a missing key says nothing about the objects.
        keys_of(store).require(check.item for check in checks if check.item.envelope is not None)
        left: list[ObjectCheck] = []
        if sampling is not None:
            checks, left = verify_plan.sample(checks, sampling)
        results = _read_all(spark, address, checks, tell)
        prefixes = {state.number: layout.data_prefix(pair, state.instance, state.number) for state in wanted}
        listed = list_prefixes(spark, address, list(prefixes.values()))
    summaries, findings = [], list(chains)
    for state in wanted:
        sizes = {info.key: info.size for info in listed[prefixes[state.number]]}
        said = verify_plan.check_state(state)
        for check in left:
            if check.generation == state.number:
                said += verify_plan.check_listed(check, sizes)
        summary, found = verify_plan.summarize(state, results, sizes, said)
        summaries.append(summary)
        findings.extend(found)
    return VerifyResult(
        pair=pair,
        root=address.root,
        generations=tuple(summaries),
        findings=tuple(findings),
        intact=_intact(reader, findings),
        skipped={number: why for number, why in skipped.items() if why != "it is cleared"},
        sample=None if sampling is None else verify_plan.sampled(sampling, checks, left),
    )


def _intact(reader: ChainReader, findings: Collection[VerifyFinding]) -> tuple[IntactState, ...]:
    """Return of each generation with findings the newest moment that needs nothing of what was found."""
    lost = {finding.where for finding in findings}
    found = []
    for number in sorted({finding.generation for finding in findings}):
        with suppress(ConfigError, DamagedError):  # without its claim nothing can be read
            state = newest_intact(reader, number, without=lost)
            if state is not None:
                found.append(state)
    return tuple(found)


def numbers_of(reader: ChainReader) -> list[int]:
    """Return the generations to verify: those that are not wholly cleared, and those whose chains can't be read.

    Returns all if a newer release wrote one of them; loading them then shows which one.
    """
    try:
        found = {state.number for state in reader.refresh(tolerant=True)}
    except DamagedError:
        return reader.numbers
    return sorted(found | reader.damaged.keys())


def load(
    reader: ChainReader, numbers: Collection[int], *, strict: bool
) -> tuple[list[Generation], list[VerifyFinding]]:
    """Read the chains again after the pins were put; return the generations, and a finding for each damaged chain."""
    states, findings = [], []
    for number in numbers:
        try:
            states.append(reader.load(number))
        except ConfigError as error:
            if strict:
                raise
            findings.append(_chain(number, error))
        except DamagedError as error:
            findings.append(_chain(number, error))
    return states, findings


def lost_of(reader: ChainReader, states: Collection[Generation]) -> list[VerifyFinding]:
    """Return a finding for each generation with a missing claim or entry that the search for heads can't notice."""
    return [_chain(number, error) for number, error in reader.lost_generations(states).items()]


def missing_heads(reader: ChainReader, heads: Collection[Head]) -> list[VerifyFinding]:
    """Return a finding for each of `heads` that the store does not hold."""
    findings = []
    for head in heads:
        try:
            reader.require(head)
        except DamagedError as error:
            where = f"entry {head.seq}"
            findings.append(
                VerifyFinding(generation=head.generation, fault=VerifyFault.HEAD, where=where, message=str(error))
            )
    return findings


def _chain(number: int, error: Exception) -> VerifyFinding:
    return VerifyFinding(generation=number, fault=VerifyFault.CHAIN, where=f"generation {number}", message=str(error))


def _read_all(
    spark: SparkSession, address: StoreAddress, checks: list[ObjectCheck], tell: Tell | None
) -> list[ObjectResult]:
    if not checks:
        return []
    context = spark.sparkContext
    tasks = verify_plan.group(checks, parallelism=context.defaultParallelism)
    total = sum(check.item.bytes for check in checks)
    objects, read = context.accumulator(0), context.accumulator(0)

    def progress() -> VerifyProgress:
        # A task that was retried has counted some objects twice.
        return VerifyProgress(
            objects=min(objects.value, len(checks)),
            of_objects=len(checks),
            bytes=min(read.value, total),
            of_bytes=total,
        )

    with reporting(progress, tell):
        work = partial(_check_task, address, objects, read)
        results: list[ObjectResult] = context.parallelize(tasks, len(tasks)).flatMap(logged(work)).collect()
    return results


def _check_task(
    address: StoreAddress,
    objects: Any,  # noqa: ANN401 - as in `_check_all`
    read: Any,  # noqa: ANN401 - as above
    checks: Iterable[ObjectCheck],
) -> Iterator[ObjectResult]:
    """Check one task's objects, and return one result for each generation: the driver gets none for each object."""
    results = list(_check_all(address, objects, read, checks))
    for generation in sorted({result.generation for result in results}):
        yield verify_plan.add_results(results, generation)


def _check_all(
    address: StoreAddress,
    objects: Any,  # noqa: ANN401 - an accumulator of PySpark's, which has no types
    read: Any,  # noqa: ANN401 - as above
    checks: Iterable[ObjectCheck],
) -> Iterator[ObjectResult]:
    """Check one task's objects. Errors of the store end the task, and Spark tries it again.

    At the last attempts they are findings: an object on a lost volume, or in an archive, must not keep all others from
    being checked. Too many of them are an outage, and end the job.
    """
    store = address.open()
    patience = _MOST_NOT_GIVEN if is_last() else 0
    for check in checks:
        try:
            result = check_one(store, check)
        except (StoreTransientError, StoreDeniedError) as error:
            patience -= 1
            if patience < 0:
                raise
            result = verify_plan.not_given(check, error)
        yield result
        objects.add(1)
        read.add(check.item.bytes)


def check_one(store: ObjectStore, check: ObjectCheck) -> ObjectResult:
    """Read one object and return its result. Raises errors of the store."""
    try:
        data = get_whole(store, check.item)
    except ObjectMissingError:
        return verify_plan.missing(check)
    except DamagedError as error:
        return verify_plan.unreadable(check, error)
    return verify_plan.check_object(check, data, keys_of(store))
