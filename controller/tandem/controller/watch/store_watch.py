"""Read the chains in S3 from a thread of its own, so that a slow store never delays a heartbeat."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.pause import Pause
from tandem.backup_avro.documents.release import Release
from tandem.backup_avro.errors import DamagedError
from tandem.controller.decision.decide import was_requested
from tandem.controller.decision.loss_detector import LossDetector
from tandem.controller.decision.loss_sign_format import LossSign
from tandem.controller.decision.spoilt_builds import NONE_SPOILT, SpoiltBuilds, spoilt_builds
from tandem.controller.local_state.remembered_heads import NOTHING_REMEMBERED, RememberedHeads, SeenHead
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.process.rates import RatedLog
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.pauses import PauseReader
from tandem.sink.store.chain.releases import ReleaseReader

_LOG = structlog.get_logger()
_RATED = RatedLog(_LOG)
_RETRY_S = 2.0
_COMPARE_S = 60.0
"""Seconds between two comparisons with the keys at hand and the heads that this machine remembers.

The latter each remember the new heads.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreView:
    """All chains as of a read that began at `began_mono`: those that are readable and not wholly cleared, ascending.

    `grew_mono` is when new entries of an instance were last seen, `grew_before_mono` when the ones before those.
    `numbers` are those of all generations that have a claim or a chain, ascending.
    `releases` are read only while there is a sealed generation, to which they may apply; `damaged` has, by number, why
    a generation is left out. `handover_ms` is the duration of the last handover, as far as this process has seen it.
    `pause` is the newest one. `spoilt` are the newest builds in a row that were spoilt. `origin`: `ChainReader.origin`.
    `requested` has, by number, when generations were claimed on a message's request, cleared ones too as far as this
    process has seen them. `loss_signs` are signs of the last day that topics may have lost records, the newest first.
    `remembered_losses` were read by this machine before, and are not in the store any more. `missing_keys` has, by
    generation, how many of its objects need each key that the configuration does not name, by the key's id.
    """

    began_mono: float
    generations: tuple[Generation, ...]
    numbers: tuple[int, ...]
    grew_mono: Mapping[str, float] = field(default_factory=dict)
    grew_before_mono: Mapping[str, float] = field(default_factory=dict)
    releases: tuple[Release, ...] = ()
    damaged: Mapping[int, str] = field(default_factory=dict)
    handover_ms: int | None = None
    pause: Pause | None = None
    origin: str | None = None
    requested: Mapping[int, int] = field(default_factory=dict)
    spoilt: SpoiltBuilds = NONE_SPOILT
    loss_signs: tuple[LossSign, ...] = ()
    remembered_losses: tuple[SeenHead, ...] = ()
    missing_keys: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    @property
    def missing_key_ids(self) -> frozenset[str]:
        """The ids of the keys that any generation lacks."""
        return frozenset(key_id for missing in self.missing_keys.values() for key_id in missing)

    @property
    def newest(self) -> int:
        """The highest number that was claimed, 0 if none."""
        return self.numbers[-1] if self.numbers else 0


def last_handover_ms(history: Iterable[Generation]) -> int | None:
    """Return the time from COMPLETE to the seal of the generation before, at the last handover; None if none is known.

    `history` are generations, cleared ones too, ascending.
    """
    found: int | None = None
    former: Generation | None = None
    for generation in history:
        if generation.completed_at is None:
            continue
        if former is not None and former.sealed_at is not None:
            found = max(0, former.sealed_at - generation.completed_at)
        former = generation
    return found


class StoreWatch:
    """Reads new entries every `interval_s`, or at once after `hurry`. `trouble` is why the last read failed."""

    def __init__(
        self,
        reader: ChainReader,
        *,
        interval_s: float,
        wake: threading.Event,
        remembered: RememberedHeads = NOTHING_REMEMBERED,
    ) -> None:
        self._reader = reader
        self._remembered = remembered
        self._compared_mono = -math.inf
        self._remembered_losses: tuple[SeenHead, ...] = ()
        self._missing_keys: dict[int, dict[str, int]] = {}
        self._releases = ReleaseReader(reader.store, reader.pair)
        self._pauses = PauseReader(reader.store, reader.pair)
        self._interval_s = interval_s
        self._wake_others = wake
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._view: StoreView | None = None
        self._snapshots: dict[int, Generation] = {}
        self._grew: dict[str, float] = {}
        self._grew_before: dict[str, float] = {}
        self._told: set[int] = set()
        self._losses = LossDetector()
        self._told_losses: frozenset[tuple[str, str]] = frozenset()
        self._thread = threading.Thread(target=self._run, name="store-watch", daemon=True)
        self.trouble: str | None = None
        self.damage: DamagedError | None = None

    def start(self) -> None:
        """Start the thread; the first read begins at once."""
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end after the read under way."""
        self._stopped.set()
        self._wake.set()

    def read_soon(self) -> None:
        """Have the chains read again at once."""
        self._wake.set()

    @property
    def view(self) -> StoreView | None:
        """The newest view; None until the first read succeeded."""
        return self._view

    def _run(self) -> None:
        while not self._stopped.is_set():
            wait_s = self._interval_s
            try:
                self._read()
            except DamagedError as error:
                self.damage = error
                self._wake_others.set()
                return
            except Exception as error:  # noqa: BLE001 (a thread that ended would leave the last view true for ever)
                wait_s = _RETRY_S
                if self.trouble is None:
                    _LOG.warning("cannot read the chains, trying again", error=error, kind=type(error).__name__)
                self.trouble = str(error) or type(error).__name__
            else:
                if self.trouble is not None:
                    _LOG.info("the store answers again")
                self.trouble = None
            self._wake.wait(wait_s)
            self._wake.clear()

    def _read(self) -> None:
        began = time.monotonic()
        first = self._view is None
        generations, grown, before = [], set(), dict(self._snapshots)
        recalled = None
        if began - self._compared_mono >= _COMPARE_S:
            recalled = self._remembered.recall(self._reader.store.url, self._reader.pair)
        # Before the chains, so that a view with a claim that was made after a pause has the pause as well.
        pause = self._pauses.refresh()
        states = self._reader.refresh(tolerant=True)
        if recalled is not None:
            # A lost head stays lost for as long as the instance runs, as published ones do.
            self._remembered_losses = recalled.compare(self._reader, states) or self._remembered_losses
            self._missing_keys = self._count_missing_keys(states)
            self._compared_mono = began
        for state in states:
            known = self._snapshots.get(state.number)
            if known is None or known.seq != state.seq:
                # Entries of a janitor do not show that the instance is alive.
                said = known is None or known.said_seq != state.said_seq
                known = self._snapshots[state.number] = state.frozen_copy()
                if said and not first:
                    grown.add(state.instance)
            generations.append(known)
        self._grew_before |= {name: self._grew[name] for name in grown if name in self._grew}
        self._grew |= dict.fromkeys(grown, time.monotonic())
        signs = self._losses.note_states(before, generations)
        self._log_signs(signs)
        self._snapshots = {state.number: state for state in generations}
        self._reader.forget_ended()
        for number, error in self._reader.damaged.items():
            if number not in self._told:
                self._told.add(number)
                _RATED.error("a generation can't be read and counts for nothing", generation=number, error=error)
        self._view = StoreView(
            began_mono=began,
            generations=tuple(generations),
            numbers=tuple(self._reader.numbers),
            grew_mono=dict(self._grew),
            grew_before_mono=dict(self._grew_before),
            releases=self._releases.refresh(tolerant=True) if any(g.sealed for g in generations) else (),
            damaged={number: str(error) for number, error in self._reader.damaged.items()},
            handover_ms=last_handover_ms(self._reader.history()),
            pause=pause,
            # In a bucket that was emptied and is written anew the first claim is gone, and is not looked for again.
            origin=self._reader.origin() if self._reader.newest else None,
            requested={g.number: g.claim.at for g in self._reader.history() if was_requested(g.claim)},
            spoilt=spoilt_builds(self._reader.history()),
            loss_signs=signs,
            remembered_losses=self._remembered_losses,
            missing_keys=self._missing_keys,
        )
        self._wake_others.set()

    def _count_missing_keys(self, states: Iterable[Generation]) -> dict[int, dict[str, int]]:
        keys = keys_of(self._reader.store)
        counted = ((state.number, keys.count_missing(state.objects.values())) for state in states)
        found = {number: missing for number, missing in counted if missing}
        for number in found.keys() - self._missing_keys.keys():
            _RATED.error("a generation can't be restored without a missing key", generation=number, keys=found[number])
        return found

    def _log_signs(self, signs: tuple[LossSign, ...]) -> None:
        for sign in signs:
            if (sign.kind, sign.topic) not in self._told_losses:
                _RATED.warning(
                    "a topic may have lost records",
                    topic=sign.topic,
                    sign=sign.kind.value,
                    what=sign.what,
                    look=sign.commands[0],
                )
        self._told_losses = frozenset((sign.kind, sign.topic) for sign in signs)
