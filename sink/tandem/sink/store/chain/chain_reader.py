"""Reads claims and chains. Claims are listed; the head of a chain is found by doubling and bisecting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice, pairwise
from typing import Final

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Claim, Entry, EntryKind, sha256_hex
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.heads import Head, RolledBackError
from tandem.backup_avro.chain.json_codec import decode_claim, decode_entry
from tandem.backup_avro.errors import ConfigError, DamagedError, NewerFormatError, TandemError, bare
from tandem.sink.store.contract.object_store import ObjectMissingError, ObjectStore, StoreUnfitError

_PARALLEL_READS = 16
_WINDOW = 4 * _PARALLEL_READS
_AHEAD = 1 << 20
"""Most bytes of an entry that is read ahead of its turn, so that a window of forged entries is at most 64 MiB. An entry
that names ten thousand partitions has 0.7 MB; larger ones, such as a SNAPSHOT of many objects, are rare."""
_FEW = 2
"""Number of chains up to which their heads are not looked up in parallel."""
_FAR = 64
"""Entries read one by one after which the head is looked up, to read the rest in parallel."""
_MOST: Final = 1 << 48
"""More entries than any chain can have: one a millisecond for thousands of years."""
_LOOK_AGAIN = 60
"""Refreshes after which a tolerant refresh tries a damaged chain again, since the damage may have happened on the way.
At the same interval the entries up to which chains were read are checked to be still the same."""
_LOOK_BACK = 15
"""Refreshes after which the entries read are checked to be still there: a bucket may be emptied, or set back. At the
same interval claims are listed; in between only the next number is checked for a claim."""
_BRING_BACK = "somebody deleted it; restore it from the bucket's versions, or use another generation"
_ROLLED_BACK = (
    "the bucket is in an older state, or it is another one: bring the newer state back from the bucket's versions or "
    "a replica, and find out how that happened"
)


def _last(exists: Callable[[int], bool], guess: int = 0) -> int:
    """Return the largest n > 0 with exists(n), 0 if there is none; numbers are dense from 1 on. Fast near `guess`.

    Raises StoreUnfitError if there seem to be more than any chain can have.
    """
    step, low = 1, guess
    if guess and not exists(guess):
        high = guess
        while (low := max(0, high - step)) and not exists(low):
            high = low
            step *= 2
    else:
        while exists(low + step):
            low += step
            step *= 2
            if low > _MOST:
                raise StoreUnfitError(
                    f"the store says that a chain has an entry {low}, which can't be",
                    code="TDM-S001",
                    remedy="check that store.root and endpoint_url are of an S3 server",
                )
        high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if exists(middle):
            low = middle
        else:
            high = middle
    return low


class ChainReader:
    """The generations of one pair as the store has them. Caches its state and reads on; one thread at a time.

    Generations that were wholly cleared before the first refresh are not read, unless `ended` asks for them: a year of
    weekly generations leaves fifty long chains without any use. With `outlines` only an outline of each is kept.
    Chains are read from their latest SNAPSHOT on, unless `whole`.

    A chain that was read up to an entry never counts again without it: a reader that saw the newer state detects that
    the bucket was put back to an older one.
    """

    def __init__(
        self, store: ObjectStore, pair: str, *, ended: bool = False, outlines: bool = False, whole: bool = False
    ) -> None:
        self._store = store
        self._pair = layout.check_name(pair, "pair")
        self._generations: dict[int, Generation] = {}
        self._numbers: set[int] = set()
        self._wants_ended = ended
        self._wants_outlines = outlines
        self._whole = whole
        self._ended: set[int] = set()
        self._over: dict[int, bool] = {}
        self._damaged: dict[int, DamagedError] = {}
        self._heads: dict[int, Head] = {}
        self._refreshes = 0
        self._looked: dict[int, int] = {}
        self._origin: str | None = None
        self._origin_due = 0

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
        """The highest number that was claimed at the last refresh, 0 if none."""
        return max(self._numbers, default=0)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the generations that had a claim or a chain at the last refresh, ascending."""
        return sorted(self._numbers)

    @property
    def damaged(self) -> Mapping[int, DamagedError]:
        """The generations that a tolerant refresh left out, with their errors."""
        return self._damaged

    def origin(self) -> str | None:
        """Return the SHA-256 of the pair's first claim, None without a valid one. It is read once.

        An invalid claim is read again as rarely as a damaged chain. A store has the same origin under all of its URLs.
        Raises the store's errors.
        """
        if self._origin is None and self._refreshes >= self._origin_due:
            try:
                self._origin = sha256_hex(self._store.get(layout.claim_key(self._pair, 1)))
            except ObjectMissingError:
                return None
            except DamagedError:  # a claim without a trusted signature is not reported here
                self._origin_due = self._refreshes + _LOOK_AGAIN
        return self._origin

    def refresh(self, *, tolerant: bool = False) -> list[Generation]:
        """Read on to the heads of all chains; return the generations that are not wholly cleared, ascending.

        All are read in ascending order until no newer one has been claimed meanwhile: so whenever a generation is seen
        being cleared, the generation that covers it is seen as well.

        A claim whose owner died before OPEN is left out as soon as a newer generation is COMPLETE: it will not be built
        any more, and it has no objects to clear. If its owner wakes up and opens it after all, it is returned again.

        Raises DamagedError on a broken chain, StoreTransientError and other store errors. If `tolerant`, a broken chain
        is left out and named in `damaged`: an unreadable generation covers no other, so none is cleared because of it.
        A chain that a newer release wrote is never left out: NewerFormatError.
        """
        if not self._numbers or self._refreshes % _LOOK_BACK == 0:
            self._list_claims()
        self._refreshes += 1
        numbers = sorted(self._numbers)
        self._look_whether_over(numbers)
        while numbers:
            for number in numbers:
                self._try_to_read_on(number, tolerant=tolerant)
            # Reading may have taken so long that a generation claimed meanwhile is complete, and others are cleared.
            numbers = self._claimed_since()
        complete = max((number for number, state in self._generations.items() if state.complete), default=0)
        return [
            state
            for number, state in sorted(self._generations.items())
            if not state.gone and (state.seq > 0 or number > complete)
        ]

    def exists(self) -> bool:
        """Return whether any generation was claimed. Raises the store's errors."""
        return next(self._claims(), None) is not None

    def _claims(self) -> Iterator[int]:
        names = self._store.list_files(layout.claims_prefix(self._pair))
        return (number for name in names if (number := layout.claim_number(name)))

    def _chains(self) -> set[int]:
        """Return the numbers of the chains that have at least one object."""
        folders = self._store.list_folders(layout.claims_prefix(self._pair))
        return {number for folder in folders if (number := layout.claim_number(f"{folder}.json"))}

    def _list_claims(self) -> None:
        """Find all claimed numbers, and the chains below the newest claim whose own claim is gone.

        No number is inferred from the one before: a process that can delete makes holes, one that can put may claim a
        number far off.
        """
        self._numbers |= set(self._claims())
        newest = self.newest
        if len(self._numbers) < newest:
            self._numbers |= {number for number in self._chains() if number < newest}

    def _claimed_since(self) -> list[int]:
        """Return the numbers that were claimed after the newest known one."""
        first = number = self.newest + 1
        while self._claimed(number):
            self._numbers.add(number)
            number += 1
        return list(range(first, number))

    def _try_to_read_on(self, number: int, *, tolerant: bool) -> None:
        if number in self._ended or (tolerant and number in self._damaged and self._refreshes % _LOOK_AGAIN):
            return
        try:
            self._read_on(number)
        except NewerFormatError:
            raise
        except DamagedError as error:
            self._generations.pop(number, None)
            self._damaged[number] = bare(error)
            if not tolerant:
                raise
        else:
            self._damaged.pop(number, None)

    def _read_on(self, number: int) -> None:
        state = self._generations.get(number)
        if state is not None:
            if not state.gone:
                if self._refreshes % _LOOK_AGAIN == 0:
                    self._check(Head.of(state), state)
                self.follow(state)
                if self._refreshes % _LOOK_BACK == 0:
                    self._look_back(state)
                self._heads[number] = Head.of(state)
        elif not self._wants_ended and self._was_over(number):
            self._ended.add(number)
        else:
            try:
                state = self.load(number)
            except ConfigError as error:
                left = layout.chain_prefix(self._pair, number)
                if number not in self._heads and next(iter(self._store.list(left)), None) is None:
                    self._ended.add(number)  # it is gone without a trace, so it has no state to judge
                    return
                raise DamagedError(
                    f"the claim of generation {number} is missing, but a later one exists",
                    code="TDM-S002",
                    remedy=f"bring it back from the bucket's versions; if nothing of it is wanted, delete {left}",
                ) from error
            known = self._heads.get(number)
            if known is not None:
                self._check(known, state)
            if self._wants_outlines and state.gone:
                state = state.outline()
            self._generations[number] = state
            self._heads[number] = Head.of(state)

    def require(self, head: Head) -> None:
        """Raise RolledBackError unless the store holds this very entry, and the chain as read reaches it.

        Raises DamagedError if that chain can't be read.
        """
        self._check(head, self._generations.get(head.generation))
        if head.generation in self._damaged:
            raise bare(self._damaged[head.generation])

    def _check(self, head: Head, state: Generation | None) -> None:
        number, seq = head.generation, head.seq
        key = layout.entry_key(self._pair, number, seq) if seq else layout.claim_key(self._pair, number)
        try:
            same = sha256_hex(self._store.get(key)) == head.sha256
        except ObjectMissingError:
            raise RolledBackError(
                f"{key} is not there, but is known to have been written", code="TDM-S003", remedy=_ROLLED_BACK
            ) from None
        if not same or (state is not None and head.missing_in(state)):
            what = "another one than is known to have been written" if not same else "not in the chain any more"
            raise RolledBackError(f"{key} is {what}", code="TDM-S004", remedy=_ROLLED_BACK)

    def _look_back(self, state: Generation) -> None:
        """Raise RolledBackError if the claim, or an entry since the last check, was there and is gone."""
        since = max(1, self._looked.get(state.number, state.seq))
        wanted = {layout.entry_key(self._pair, state.number, seq) for seq in range(since, state.seq + 1)}
        before, last = (layout.entry_key(self._pair, state.number, seq) for seq in (since - 1, state.seq))
        # Among the entries may be objects that are none, such as copies of entries.
        for item in self._store.list(layout.chain_prefix(self._pair, state.number), after=before) if wanted else ():
            wanted.discard(item.key)
            if item.key >= last:
                break
        gone = sorted(wanted)
        if not self._claimed(state.number):
            gone.insert(0, layout.claim_key(self._pair, state.number))
        if gone:
            raise RolledBackError(
                f"{gone[0]} was there and is gone: somebody emptied {self._store.url}, or set it back",
                code="TDM-S005",
                remedy=_ROLLED_BACK,
            )
        self._looked[state.number] = state.seq

    def _look_whether_over(self, numbers: Iterable[int]) -> None:
        """Read the heads of many chains in parallel at the first refresh: a year of daily generations leaves 365.

        An error of one of them is raised when its chain is read in turn.
        """
        known = self._generations.keys() | self._ended | self._damaged.keys()
        unknown = [] if self._wants_ended else [number for number in numbers if number not in known]
        if len(unknown) <= _FEW:
            return
        first, *others = unknown
        try:
            guess = self.head(first)  # chains of one pair are of about the same length
        except TandemError:
            return
        with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="chain-read") as pool:
            found = {number: pool.submit(self._is_over, number, guess) for number in others}
        self._over = {number: bool(one.result()) for number, one in found.items() if one.exception() is None}

    def _was_over(self, number: int) -> bool:
        known = self._over.pop(number, None)
        return self._is_over(number) if known is None else known

    def _is_over(self, number: int, guess: int = 0) -> bool:
        """Return whether the chain ends in a CLEARED that keeps no partition, so that it need not be read."""
        if guess and self._store.head(layout.entry_key(self._pair, number, 1)) is None:
            return False  # a claim alone has no head
        head = self.head(number, guess)
        if head == 0:
            return False
        entry, _ = self._entry(number, head)
        return entry.kind is EntryKind.CLEARED and entry.clearing is not None and not entry.clearing.stays

    def history(self) -> list[Generation]:
        """Return all generations read so far, cleared ones too, ascending."""
        return [state for _, state in sorted(self._generations.items())]

    def forget_ended(self) -> None:
        """Keep only outlines of the generations that are wholly cleared: for processes that read on for months."""
        for number, state in self._generations.items():
            if state.gone and state.positions:
                self._generations[number] = state.outline()

    def lost_generations(self, states: Iterable[Generation]) -> dict[int, DamagedError]:
        """Return the generations whose claim or entries were deleted where the search for heads can't detect it.

        Doubling and bisecting may take the first missing number for the end. So the keys beyond the newest claim are
        listed, and beyond the head of each of `states` and of the refreshed generations: there are none, but for an
        entry that is being appended.

        A generation may be gone without a trace, and the reason can't be known. It matters as long as an older
        generation still exists, or no newer one is complete.
        """
        found = {}
        for number in self._chains():
            if number > self.newest and not self._claimed(number):
                found[number] = DamagedError(
                    f"the claim of generation {number} is missing, but its chain exists",
                    code="TDM-S006",
                    remedy=_BRING_BACK,
                )
        looked_at = self._generations | {state.number: state for state in states}
        for first, last in self._holes(looked_at.values()):
            which = f"generation {first} is" if first == last else f"generations {first} to {last} are"
            found[last] = DamagedError(
                f"{which} gone, claims and chains, but there are later ones", code="TDM-S007", remedy=_BRING_BACK
            )
        for number, state in sorted(looked_at.items()):
            if state.gone:
                continue
            next_key = layout.entry_key(self._pair, number, state.seq + 1)
            head = layout.entry_key(self._pair, number, state.seq)
            behind = self._store.list(layout.chain_prefix(self._pair, number), after=head)
            after = next((item.key for item in behind if len(item.key) == len(head)), None)  # no copy of an entry
            if after is not None and after != next_key:
                found[number] = DamagedError(
                    f"chain entry {next_key} is missing, but {after} exists", code="TDM-S008", remedy=_BRING_BACK
                )
        return found

    def _holes(self, states: Collection[Generation]) -> Iterator[tuple[int, int]]:
        """Yield ranges of generations that are gone without a trace and matter, as first and last number."""
        live = [state for state in states if not state.gone]
        complete = max((state.number for state in live if state.complete), default=0)
        for before, after in pairwise([0, *sorted(self._numbers)]):
            if after - before > 1 and (complete < after or any(state.number < after for state in live)):
                yield before + 1, after - 1

    def _claimed(self, number: int) -> bool:
        return self._store.head(layout.claim_key(self._pair, number)) is not None

    def load(self, number: int, *, upto: int | None = None) -> Generation:
        """Read one generation to its head or to entry `upto`. Raises ConfigError if it doesn't exist.

        With `upto` it may lack later entries: those of a bucket's replica arrive in no order.
        """
        begun = self._claimed_state(number)
        head = self.head(number)
        last = head if upto is None else min(head, upto)
        state = None if self._whole else self._from_snapshot(begun.claim, head, last, strict=upto is None)
        state = state or begun
        for entry, sha256 in self.entries(number, state.seq + 1, last):
            state.apply(entry, sha256)
        return state

    def beginnings(self, number: int) -> Iterator[Generation]:
        """Yield one generation as of each SNAPSHOT that can be read, the latest first, then as of its claim.

        Raises as `load`, but not for entries that are missing or damaged.
        """
        begun = self._claimed_state(number)
        with suppress(DamagedError):
            yield from self._snapshots(begun.claim, self.head(number))
        yield begun

    def _claimed_state(self, number: int) -> Generation:
        key = layout.claim_key(self._pair, number)
        try:
            data = self._store.get(key)
        except ObjectMissingError as error:
            raise ConfigError(
                f"pair {self._pair} has no generation {number} under {self._store.url}",
                code="TDM-S009",
                remedy="`tandem history` lists those there are; check pair and store.root as well",
            ) from error
        claim = decode_claim(data, key)
        if claim.generation != number or claim.pair != self._pair:
            raise DamagedError(
                f"{key} is the claim of generation {claim.generation} of pair {claim.pair}", code="TDM-S010"
            )
        return Generation(claim=claim, head_sha256=sha256_hex(data))

    def _from_snapshot(self, claim: Claim, head: int, last: int, *, strict: bool) -> Generation | None:
        """Return the state after the latest SNAPSHOT up to entry `last`, None if there is none.

        Unless `strict`, None also if a later one can't be read, which alone tells of earlier ones.
        """
        try:
            return next((state for state in self._snapshots(claim, head) if state.seq <= last), None)
        except DamagedError:
            if strict:
                raise
            return None

    def _snapshots(self, claim: Claim, head: int) -> Iterator[Generation]:
        """Yield the state after each SNAPSHOT up to the head, the latest first."""
        number = claim.generation
        seq = self._entry(number, head)[0].snapshot if head else 0
        while seq:
            entry, sha256 = self._entry(number, seq)
            state = Generation.from_snapshot(claim, entry, sha256, layout.entry_key(self._pair, number, seq))
            earlier = state.earlier_snapshot
            yield state
            seq = earlier

    def head(self, number: int, guess: int = 0) -> int:
        """Return the number of the last entry of a chain, 0 if it has none yet. Raises errors of the store.

        A `guess` near the head saves requests.
        """
        return _last(lambda seq: self._store.head(layout.entry_key(self._pair, number, seq)) is not None, guess)

    def follow(self, state: Generation) -> bool:
        """Apply the entries that were appended since the last call; return whether there were any."""
        before = state.seq
        while True:
            if state.seq - before == _FAR:  # maybe a week of entries: read the rest in parallel
                head = self.head(state.number, state.seq)
                for entry, sha256 in self.entries(state.number, state.seq + 1, head):
                    state.apply(entry, sha256)
            key = layout.entry_key(self._pair, state.number, state.seq + 1)
            try:
                data = self._store.get(key)
            except ObjectMissingError:
                return state.seq > before
            state.apply(decode_entry(data, key), sha256_hex(data))

    def entries(self, number: int, first: int, last: int) -> Iterator[tuple[Entry, str]]:
        """Yield entries [first, last] with the hash of their bytes, several reads at a time, bounded in memory.

        Only bytes are read ahead, at most a megabyte of each entry. Larger entries, and those that are missing or
        refused, are read in turn: the first faulty entry ends the iteration.
        """
        if last - first < 2:  # not worth a pool
            for seq in range(first, last + 1):
                yield self._entry(number, seq)
            return
        pool = ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="chain-read")
        window: deque[Future[bytes | None]] = deque()
        try:
            left = iter(range(first, last + 1))
            for seq in range(first, last + 1):
                window.extend(pool.submit(self._ahead, number, later) for later in islice(left, _WINDOW - len(window)))
                yield self._entry(number, seq, window.popleft().result())
        finally:
            pool.shutdown(cancel_futures=True)
            window.clear()  # an error refers to this frame, so keeping the error would keep the bytes

    def _ahead(self, number: int, seq: int) -> bytes | None:
        """Return the bytes of an entry; None if they are more than `_AHEAD`, missing or damaged."""
        try:
            return self._store.get(layout.entry_key(self._pair, number, seq), most=_AHEAD)
        except (DamagedError, ObjectMissingError):
            return None

    def _entry(self, number: int, seq: int, data: bytes | None = None) -> tuple[Entry, str]:
        """Return an entry with the hash of its bytes, which are `data` if that is given."""
        key = layout.entry_key(self._pair, number, seq)
        try:
            data = self._store.get(key) if data is None else data
        except ObjectMissingError as error:
            raise DamagedError(
                f"chain entry {key} is missing, but later ones exist",
                code="TDM-S011",
                remedy="somebody deleted it; restore it from the bucket's versions, or use another generation",
            ) from error
        return decode_entry(data, key), sha256_hex(data)


def is_data(entry: Entry) -> bool:
    """Return whether an entry adds or confirms positions, which counts as progress of an Active."""
    return entry.kind in {EntryKind.COMMIT, EntryKind.CONFIRM, EntryKind.COMPLETE}
