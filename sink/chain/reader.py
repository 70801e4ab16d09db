"""Reading claims and chains. The head is found by doubling and bisecting, never by listing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from backup_avro import layout
from backup_avro.chain import Entry, Kind, sha256_hex
from backup_avro.chain_json import decode_claim, decode_entry
from backup_avro.errors import ConfigError, DamagedError
from backup_avro.fold import Generation
from sink.object_store.base import ObjectMissingError, ObjectStore

_PARALLEL_READS = 16


def _last(exists: Callable[[int], bool], start: int) -> int:
    """Return the largest n >= `start` with exists(n), numbers being dense above `start`; `start` if none is."""
    step, low = 1, start
    while exists(low + step):
        low += step
        step *= 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if exists(middle):
            low = middle
        else:
            high = middle
    return low


class ChainReader:
    """The generations of one pair as S3 has them. Keeps what it read and reads on from there; one thread at a time."""

    def __init__(self, store: ObjectStore, pair: str) -> None:
        self._store = store
        self._pair = layout.check_name(pair, "pair")
        self._generations: dict[int, Generation] = {}
        self._newest = 0

    @property
    def store(self) -> ObjectStore:
        """The store that is read."""
        return self._store

    @property
    def pair(self) -> str:
        """The pair whose chains are read."""
        return self._pair

    @property
    def newest(self) -> int:
        """The highest number that was claimed when it was last looked, 0 if none."""
        return self._newest

    def refresh(self) -> list[Generation]:
        """Read on to the heads of all chains; return the generations that are not wholly cleared, ascending.

        Raises DamagedError on a broken chain, StoreTransientError and other store errors.
        """
        self._newest = _last(self._claimed, self._newest)
        for number in range(1, self._newest + 1):
            state = self._generations.get(number)
            if state is None:
                self._generations[number] = self.load(number)
            elif not state.gone:
                self.follow(state)
        return [state for _, state in sorted(self._generations.items()) if not state.gone]

    def history(self) -> list[Generation]:
        """Return all generations read so far, cleared ones too, ascending."""
        return [state for _, state in sorted(self._generations.items())]

    def _claimed(self, number: int) -> bool:
        return self._store.head(layout.claim_key(self._pair, number)) is not None

    def load(self, number: int, *, upto: int | None = None) -> Generation:
        """Read one generation from its claim on, to its head or to entry `upto`. ConfigError if it doesn't exist."""
        key = layout.claim_key(self._pair, number)
        try:
            data = self._store.get(key)
        except ObjectMissingError as error:
            raise ConfigError(f"pair {self._pair} has no generation {number} under {self._store.url}") from error
        claim = decode_claim(data, key)
        if claim.generation != number or claim.pair != self._pair:
            raise DamagedError(f"{key} is the claim of generation {claim.generation} of pair {claim.pair}")
        state = Generation(claim=claim, head_sha256=sha256_hex(data))
        head = _last(lambda seq: self._store.head(layout.entry_key(self._pair, number, seq)) is not None, 0)
        for entry, sha256 in self.entries(number, 1, head if upto is None else min(head, upto)):
            state.apply(entry, sha256)
        return state

    def follow(self, state: Generation) -> bool:
        """Read what was appended since; return whether there was anything."""
        before = state.seq
        while True:
            key = layout.entry_key(self._pair, state.number, state.seq + 1)
            try:
                data = self._store.get(key)
            except ObjectMissingError:
                return state.seq > before
            state.apply(decode_entry(data, key), sha256_hex(data))

    def entries(self, number: int, first: int, last: int) -> Iterator[tuple[Entry, str]]:
        """Yield entries [first, last] with the hash of their bytes, several reads at a time, bounded in memory."""
        if last - first < 2:  # not worth a pool
            for seq in range(first, last + 1):
                yield self._entry(number, seq)
            return
        with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="chain-read") as pool:
            window: deque[Future[tuple[Entry, str]]] = deque()
            for seq in range(first, last + 1):
                window.append(pool.submit(self._entry, number, seq))
                if len(window) > 4 * _PARALLEL_READS:
                    yield window.popleft().result()
            while window:
                yield window.popleft().result()

    def _entry(self, number: int, seq: int) -> tuple[Entry, str]:
        key = layout.entry_key(self._pair, number, seq)
        try:
            data = self._store.get(key)
        except ObjectMissingError as error:
            raise DamagedError(
                f"chain entry {key} is missing, but later ones exist",
                remedy="somebody deleted it; restore it from the bucket's versions, or use another generation",
            ) from error
        return decode_entry(data, key), sha256_hex(data)


def is_data(entry: Entry) -> bool:
    """Whether an entry adds or confirms positions: what counts as progress of an Active."""
    return entry.kind in {Kind.COMMIT, Kind.CONFIRM, Kind.COMPLETE}
