"""`tandem retention`: observe the store, plan, and carry the plan out; each step is judged again just before it.

This is safe beside running instances and beside another janitor: the chains decide, and a step, or a part of it, that a
new plan would not contain any more is left out.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, assert_never

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Clearing, Entry, EntryKind
from tandem.backup_avro.chain.generation import ChainError, Generation
from tandem.backup_avro.errors import RefusedError, TandemError
from tandem.backup_avro.json_fields import NOT_IN_JSON, in_json
from tandem.sink.store import ObjectStore, UploadInfo
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, now_ms
from tandem.sink.write.clear_generation import clear_generation
from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair
from tandem.spark_jobs.retention.retention_plan import JANITOR, make_plan, narrow_step
from tandem.spark_jobs.retention.retention_steps import (
    RetentionAction,
    RetentionPlan,
    RetentionRules,
    RetentionStep,
    StoreObservation,
)
from tandem.spark_jobs.spark.prefix_listing import list_prefixes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The most keys in one REWRITE entry, and in one call of the store's delete.
_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What became of a step. `count` and `bytes` are what was done; `note` says why it is less than was planned."""

    step: RetentionStep = field(metadata=NOT_IN_JSON)
    count: int = 0
    bytes: int = 0
    note: str | None = None
    failed: bool = False

    @property
    @in_json
    def action(self) -> RetentionAction:
        """The action of the step."""
        return self.step.action

    @property
    @in_json
    def generation(self) -> int | None:
        """The generation of the step."""
        return self.step.generation


class RetentionJob:
    """Plans, and carries out, retention for one pair. Use it from one thread at a time."""

    def __init__(self, spark: SparkSession, address: StoreAddress, pair: str, rules: RetentionRules) -> None:
        self._spark = spark
        self._address = address
        self._store: ObjectStore = address.open()
        self._reader = ChainReader(self._store, pair, ended=True, outlines=True)
        self._pair = pair
        self._rules = rules
        self._incarnation = f"{JANITOR}{uuid.uuid4()}"
        self._stop = threading.Event()
        self._seen: StoreObservation | None = None

    def plan(self) -> RetentionPlan:
        """Observe the store and the chains and return a plan. Raises ConfigError if the pair has nothing, DamagedError.

        A damaged chain prevents any plan: a generation that can't be read can't be judged.
        """
        require_pair(self._address, self._pair)
        self._reader.refresh()
        folders = list(self._folders())
        listed = list_prefixes(self._spark, self._address, folders)
        uploads = list(self._store.list_uploads(f"{self._pair}/"))
        # The chains are read after the listing: an object that is in no chain now was not committed when it was listed.
        self._reader.refresh()
        states = self._reader.history()
        prefixes = {self._prefix(state): state for state in states}
        self._seen = self._refresh(
            StoreObservation(
                pair=self._pair,
                at=0,
                states=tuple(states),
                objects={prefixes[name].number: found for name, found in listed.items() if name in prefixes},
                uploads=_by_generation(uploads, prefixes),
                strange=tuple(name for name in folders if name not in prefixes),
            )
        )
        return make_plan(self._seen, self._rules)

    def execute(self, plan: RetentionPlan, tell: Callable[[StepOutcome], None] = lambda _: None) -> list[StepOutcome]:
        """Carry out a plan that this janitor made. After a step that fails the remaining steps are still tried."""
        outcomes = []
        for step in plan.steps:
            try:
                left = narrow_step(step, self._again(), self._rules)
                outcome = (
                    self._carry_out(step, left) if left else StepOutcome(step=step, note="no longer so; left alone")
                )
            except TandemError as error:
                outcome = StepOutcome(step=step, note=str(error), failed=True)
            outcomes.append(outcome)
            tell(outcome)
        return outcomes

    def _prefix(self, state: Generation) -> str:
        return layout.data_prefix(self._pair, state.instance, state.number)

    def _folders(self) -> Iterator[str]:
        """Yield the data prefixes that hold objects."""
        for instance in self._store.list_folders(f"{self._pair}/"):
            if instance not in layout.FOLDERS:
                for folder in self._store.list_folders(f"{self._pair}/{instance}/"):
                    yield f"{self._pair}/{instance}/{folder}/"

    def _refresh(self, seen: StoreObservation) -> StoreObservation:
        """Return the observation with current states, pins and time; the listing is kept."""
        # The time is read before the pins: a pin that is renewed while they are listed must not seem to have ended.
        at = now_ms(self._store)
        found = tuple(pins.list_pins(self._store, self._pair))
        return replace(seen, states=tuple(self._reader.history()), pins=found, at=at)

    def _again(self) -> StoreObservation:
        if self._seen is None:
            raise RefusedError("nothing was planned", code="TDM-T001", remedy="plan first")
        self._reader.refresh()
        self._seen = self._refresh(self._seen)
        return self._seen

    def _state(self, step: RetentionStep) -> Generation:
        return next(state for state in self._reader.history() if state.number == step.generation)

    def _carry_out(self, planned: RetentionStep, step: RetentionStep) -> StepOutcome:
        match step.action:
            case RetentionAction.EXPIRE:
                step = self._expire(step)
            case RetentionAction.REPLACED | RetentionAction.LEFTOVERS:
                self._delete(step.keys)
            case RetentionAction.ORPHANS:
                step = self._fenced(step)
                self._delete(step.keys)
            case RetentionAction.CLEAR:
                return self._clear(planned, step)
            case RetentionAction.UPLOADS:
                for upload in step.uploads:
                    self._store.abort_upload(upload)
            case RetentionAction.PINS:
                for pin in step.pins:
                    pins.release_pin(self._store, self._pair, pin)
            case _:
                assert_never(step.action)
        note = None if step.count == planned.count else f"{planned.count - step.count} no longer so; left alone"
        return StepOutcome(step=planned, count=step.count, bytes=step.bytes, note=note)

    def _delete(self, keys: tuple[str, ...]) -> None:
        for batch in _batches(keys):
            self._store.delete(batch)

    def _fenced(self, step: RetentionStep) -> RetentionStep:
        """Fence other janitors off if they may have stored some of the objects; return those that none can commit now.

        The objects were listed before the fence, so they were stored before it.
        """
        if not any(layout.by_janitor(key) for key in step.keys):
            return step
        state = self._state(step)
        self._writer(state).append(_entry(EntryKind.REWRITE, fence=True, reason="orphans"))
        free = (item for item in step.objects if item.key not in state.objects and item.key not in state.replaced)
        return replace(step, objects=tuple(free))

    def _writer(self, state: Generation) -> ChainWriter:
        """Return a writer for a chain, as this janitor, or as the janitor whose clearing is to be finished.

        Only the writer of CLEARING, or the holder, may write CLEARED, and a generation is CLEARING once.
        """
        former = None if state.clearing is None else state.clearing_by
        return ChainWriter(self._store, state, former or self._incarnation, stop=self._stop)

    def _expire(self, step: RetentionStep) -> RetentionStep:
        """Take objects out of the chain; return those that were in it until then.

        The Active may merge some of them, or seal the generation, after the step was looked at once more.
        """
        writer = self._writer(self._state(step))
        done = {key for batch in _batches(step.keys) for key in _append_rewrite(writer, batch, step.reason)}
        return replace(step, objects=tuple(item for item in step.objects if item.key in done))

    def _clear(self, planned: RetentionStep, step: RetentionStep) -> StepOutcome:
        state = self._state(step)
        writer = self._writer(state)
        try:
            if state.clearing is None:
                wanted = Clearing(goes=tuple(sorted(state.positions)), stays={})
                writer.append(_entry(EntryKind.CLEARING, clearing=wanted, reason=step.reason))
            assert state.clearing is not None
            done = clear_generation(self._store, writer, state.clearing, stop=self._stop)
        except ChainError as error:
            return StepOutcome(step=planned, note=f"the chain went on meanwhile; left alone: {error}")
        if done.pinned:
            owners = ", ".join(pin.owner for pin in done.pinned)
            return StepOutcome(
                step=planned, note=f"CLEARING is written, deletion waits for pins of {owners}; run again"
            )
        return StepOutcome(step=planned, count=done.objects, bytes=done.bytes)


def _append_rewrite(writer: ChainWriter, keys: tuple[str, ...], reason: str) -> tuple[str, ...]:
    """Append a REWRITE without those of the objects that are in the chain; return their keys. Raises ChainError."""
    state = writer.state

    def outdated() -> str | None:
        return next((f"{key} is not in the chain any more" for key in keys if key not in state.objects), None)

    while True:
        keys = () if state.sealed else tuple(key for key in keys if key in state.objects)
        if not keys:
            return ()
        try:
            writer.append(_entry(EntryKind.REWRITE, replaced=keys, reason=reason), unless=outdated)
        except ChainError:
            if not state.sealed and outdated() is None:
                raise
        else:
            return keys


def _entry(kind: EntryKind, **fields: object) -> Entry:
    return replace(Entry(kind=kind, seq=0, prev_sha256="", incarnation="", at=0), **fields)  # type: ignore[arg-type]  # fields of Entry


def _batches(keys: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for at in range(0, len(keys), _AT_ONCE):
        yield keys[at : at + _AT_ONCE]


def _by_generation(
    uploads: Iterable[UploadInfo], prefixes: Mapping[str, Generation]
) -> dict[int, tuple[UploadInfo, ...]]:
    found: dict[int, list[UploadInfo]] = {}
    for upload in uploads:
        # <pair>/<instance>/generation=<n>/…
        state = prefixes.get("/".join(upload.key.split("/")[:3]) + "/")
        if state is not None:
            found.setdefault(state.number, []).append(upload)
    return {number: tuple(items) for number, items in found.items()}
