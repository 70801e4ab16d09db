"""List and read the files of a connector below a root, and build the state that restores and readers use.

The contents of the files are recorded nowhere else, so all of them are read before a plan is made: in threads, or by
Spark's tasks. Memory holds a few files at a time, and some hundred bytes of figures for each file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tandem.backup_avro.chain import layout
from tandem.backup_avro.documents import connector_layout
from tandem.backup_avro.documents.connector_layout import ConnectorReading, place_of
from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.backup_avro.selection.restorable_state import Selection
from tandem.sink.process.safe_text import enumerated
from tandem.sink.store import ObjectMissingError, ObjectStore, OutsizedObjectError
from tandem.spark_jobs.connector import choose_files, file_findings, file_index, overlapping_files
from tandem.spark_jobs.connector.choose_files import NO_GENERATION, FileListing
from tandem.spark_jobs.connector.file_findings import ConnectorFile, ListedFile
from tandem.spark_jobs.connector.overlapping_files import SettledFiles
from tandem.spark_jobs.reading.object_reader import Body, StoreAddress
from tandem.spark_jobs.reading.wanted_state import FoundState, ReadyState, StateRequest
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Threads that read files. Each holds one.
_THREADS: Final = 16
#: Files of at least this many bytes are read one at a time, not in threads: a connector may have written files of any
#: size. Each is a task of its own in Spark.
_LARGE: Final = 32 * 1024 * 1024
#: Seconds between two writes of the index while files are read.
_KEPT_EVERY_S: Final = 60.0

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
Run = Callable[[Callable[[_Task], _Result], Sequence[_Task]], Iterable[_Result]]
"""Runs tasks in parallel and yields the results in the order of the tasks."""

Tell = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes in total."""


def in_threads(work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
    """Run tasks in threads of this process."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="connector") as pool:
        try:
            yield from pool.map(work, tasks)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def in_spark(spark: SparkSession, work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterable[_Result]:
    """Run each task as a Spark task."""
    found: list[_Result] = spark.sparkContext.parallelize(tasks, max(1, len(tasks))).map(logged(work)).collect()
    return found


class ConnectorReader:
    """Finds the state that a connector's files hold, as `ChainReader` does for a pair. Files are listed and read once.

    `wants` selects topics by name; `run` is how tasks are run. `index` is a local file with the figures of files that
    have not changed since they were read; it is read and written.
    """

    def __init__(
        self,
        address: StoreAddress,
        *,
        wants: Callable[[str], bool] = lambda _: True,
        tell: Tell | None = None,
        index: Path | None = None,
    ) -> None:
        assert address.connector is not None
        self.store: ObjectStore = address.open()
        self.pair = connector_layout.PAIR
        self.reading: ConnectorReading = address.connector
        self.run: Run = in_threads  # type: ignore[type-arg]  # for any task and its result
        self._address = address
        self._wants = wants
        self._tell = tell
        self._index = index
        self._found: FoundState | None = None

    def find(self, state_request: StateRequest) -> FoundState:
        """Return the state that the files hold; there is exactly one.

        Raises ConfigError for an option that names something absent or impossible, DamagedError for files that can't be
        relied on, RefusedError where the user has to choose a copy, and the store's errors.
        """
        refuse_states(state_request)
        if self._found is None:
            self._found = FoundState(generations=(), basis={}, ready=self._ready())
        return self._found

    def _ready(self) -> ReadyState:
        listing = self.listing()
        wanted = choose_files.files_to_read(listing, self.reading, self._wants)
        if not wanted:
            raise no_files_error(self._address, listing)
        files = self.files(wanted)
        choose_files.refuse_faults([finding for file in files for finding in file.findings])
        partitions, notes = [], choose_files.notes_on(listing)
        for topic, copies in sorted(choose_files.by_copy(files).items()):
            copy, said = choose_files.choose(topic, copies)
            settled = self.settled(topic, copies[copy])
            choose_files.refuse_faults([finding for one in settled.values() for finding in one.conflicts])
            partitions += choose_files.select(topic, copies[copy], settled)
            notes += [said] if said is not None else []
            notes += choose_files.notes_of(topic, copies[copy], settled.values(), self.reading)
        selection = Selection(generation=NO_GENERATION, seq=0, partitions=tuple(partitions))
        return ReadyState(selection=selection, notes=tuple(notes), reading=_identity(self.reading))

    def listing(self) -> FileListing:
        """List all files below the root. Raises ConfigError if a file named by --leave-out does not exist."""
        listing = list_root(self.store, self.reading)
        missing = sorted(self.reading.left_out - set(listing.left_out))
        if missing:
            raise ConfigError(
                f"there is no file {missing[0]} below {self._address.root}, which is to be left out",
                code="TDM-P011",
                remedy="name it as it stands below the root",
            )
        return listing

    def _known(self) -> dict[str, ConnectorFile]:
        if self._index is None:
            return {}
        return file_index.load(self._index, root=self._address.root, empty_as_null=self.reading.empty_as_null)

    def files(self, wanted: Sequence[ListedFile], *, read_all: bool = False) -> list[ConnectorFile]:
        """Return the figures of files; unless `read_all`, files that are unchanged since the index are not read again.

        Faults of a file are part of its figures, not raised. Raises ConfigError for an index that can't be used.
        """
        before = self._known()
        known = {} if read_all else before
        found = [known[item.key] for item in wanted if item.key in known and known[item.key].listed == item]
        new = [item for item in wanted if item.key not in known or known[item.key].listed != item]
        return [*found, *self._read(new, before)] if new else found

    def _keep(self, before: Mapping[str, ConnectorFile], files: Iterable[ConnectorFile]) -> None:
        if self._index is not None:
            kept = {**before, **{file.key: file for file in files}}
            root, empty_as_null = self._address.root, self.reading.empty_as_null
            file_index.save(self._index, kept.values(), root=root, empty_as_null=empty_as_null)

    def _read(self, wanted: Sequence[ListedFile], before: Mapping[str, ConnectorFile]) -> list[ConnectorFile]:
        """Read files; write the index every `_KEPT_EVERY_S` seconds and at the end, merged into `before`."""
        total = sum(item.size for item in wanted)
        large = [item for item in wanted if item.size >= _LARGE]
        small = [item for item in wanted if item.size < _LARGE]
        work = partial(_look_all, self._address)
        found: list[ConnectorFile] = []
        done = 0
        kept_at = time.monotonic()
        for run, tasks in ((self._run_large(), [[item] for item in large]), (self.run, file_findings.group(small))):
            for files in run(work, tasks):
                found += files
                done += sum(file.listed.size for file in files)
                if self._tell is not None:
                    self._tell(done, total)
                if time.monotonic() - kept_at > _KEPT_EVERY_S:
                    self._keep(before, found)
                    kept_at = time.monotonic()
        self._keep(before, found)
        return found

    def settled(self, topic: str, files: Sequence[ConnectorFile]) -> Mapping[str, SettledFiles]:
        """Settle the overlapping files of one copy; return the result by the key of the first file of each group."""
        work = partial(_settle, self._address, choose_files.topic_id_of(topic))
        groups = choose_files.overlapping(files)
        large = [group for group in groups if sum(file.size for file in group) >= _LARGE]
        small = [group for group in groups if sum(file.size for file in group) < _LARGE]
        found: dict[str, SettledFiles] = {}
        for run, tasks in ((self._run_large(), large), (self.run, small)):
            found |= {group[0].key: settled for group, settled in zip(tasks, run(work, tasks), strict=True)}
        return found

    def _run_large(self) -> Run:  # type: ignore[type-arg]  # for any task and its result
        return _one_by_one if self.run is in_threads else self.run


def _one_by_one(work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
    yield from map(work, tasks)


def _identity(reading: ConnectorReading) -> str:
    """Return the part of a plan's identity that tells two ways of decoding the same files apart."""
    return "connector, empty as null" if reading.empty_as_null else "connector"


def refuse_states(state_request: StateRequest, prefix: str = "") -> None:
    """Raise ConfigError if the request names a state that only chains have; `prefix` precedes the option's name."""
    for name in ("generation", "at", "commit", "checkpoint"):
        if getattr(state_request, name) is not None:
            raise ConfigError(
                f"{prefix}{name} is not allowed with the layout connector: its files have no "
                f"generations, commits or checkpoints",
                code="TDM-P012",
                remedy="its files hold one state, the newest",
            )


def list_root(store: ObjectStore, reading: ConnectorReading) -> FileListing:
    """List a root. Objects that restores have left there are ignored."""
    files: list[ListedFile] = []
    strays: list[str] = []
    left_out: list[str] = []
    pairs: list[str] = []
    others = 0
    own = layout.restores_prefix(connector_layout.PAIR)
    for info in store.list(""):
        place = place_of(info.key)
        if info.key in reading.left_out:
            left_out.append(info.key)
        elif place is not None:
            modified = round(info.modified.timestamp() * 1000)
            files.append(ListedFile(key=info.key, size=info.size, modified=modified, place=place))
        elif info.key.endswith(connector_layout.SUFFIX):
            strays.append(info.key)
        elif not info.key.startswith(own):
            others += 1
            if info.key.endswith(_FIRST_CLAIM) and info.key.count("/") == _FIRST_CLAIM.count("/"):
                pairs.append(info.key.removesuffix(_FIRST_CLAIM))
    return FileListing(
        files=tuple(files), strays=tuple(strays), others=others, pairs=tuple(pairs), left_out=tuple(left_out)
    )


def no_files_error(address: StoreAddress, listing: FileListing, missing: Collection[str] = ()) -> ConfigError:
    """Return the error for a root, or a choice of topics, without files; `missing` are topics that were named."""
    if listing.files:
        topics = sorted({item.place.topic for item in listing.files})
        return ConfigError(
            f"{address.root} holds no files of the topics that are asked for"
            + (f": {', '.join(sorted(missing))}" if missing else ""),
            code="TDM-P013",
            remedy=f"there are {enumerated(topics)}",
        )
    what = (
        f"{address.root} holds no file topics/<topic>/partition=<n>/<name>.avro or <topic>/<instance>/<n>/<name>.avro"
    )
    if listing.pairs:
        return ConfigError(
            f"{what}, but the backup of pair {listing.pairs[0]}",
            code="TDM-P014",
            remedy="leave the layout out for one of Tandem's own",
        )
    some = f", but {listing.strays[0]}" if listing.strays else ""
    return ConfigError(
        f"{what}{some}", code="TDM-P015", remedy="name the folder that holds topics/, or the topics' folders, as root"
    )


_FIRST_CLAIM: Final = layout.claim_key("", 1)


def _look_all(address: StoreAddress, task: Sequence[ListedFile]) -> list[ConnectorFile]:
    return [examine_one(address, item) for item in task]


def examine_one(address: StoreAddress, item: ListedFile) -> ConnectorFile:
    """Read one file and return its figures and faults. Raises errors of the store."""
    assert address.connector is not None
    try:
        data = address.open().get(item.key, most=item.size)
    except ObjectMissingError:
        return file_findings.gone(item)
    except OutsizedObjectError as error:
        return file_findings.grown(item, error.size)
    except DamagedError as error:
        return file_findings.unreadable(item, error)
    return file_findings.examine_file(item, data, empty_as_null=address.connector.empty_as_null)


def _settle(address: StoreAddress, topic_id: str, files: Sequence[ConnectorFile]) -> SettledFiles:
    assert address.connector is not None

    def bodies(file: ConnectorFile) -> Iterator[Body]:
        item = file.item(topic_id)
        piece = choose_files.slice_of_file(item, item.parts[0])
        return address.reader(cache_bytes=0).bodies(piece)

    return overlapping_files.settle_overlap(files, topic_id, bodies, prefer=address.connector.prefer)
