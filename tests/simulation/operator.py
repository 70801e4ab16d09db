"""A person at work beside the pair: checkpoints, slow restores, releases, pauses, retention. Each command is a process.

The commands are production's: `controller.status`, `controller.history.releasable`, `sink.store.chain.checkpoints` and
`releases`, the planning of `spark_jobs.restore.job`, `pins.hold_pins`. Only what they have of the cluster is made up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, cast

from simulation import erasing, janitor
from simulation.board import Board
from simulation.client import Desk
from simulation.janitor import Chores
from simulation.judge import Judge
from simulation.kafka import Source, Transcoder
from simulation.log import Cluster
from simulation.network import Network, Weather
from simulation.runtime import Process, Runtime
from simulation.store import Bucket, Store
from tandem.backup_avro.chain import layout
from tandem.backup_avro.documents.checkpoint import CheckpointState
from tandem.backup_avro.documents.release import Release
from tandem.backup_avro.errors import ConfigError, RefusedError, TandemError, TransientError
from tandem.controller.config import Config
from tandem.controller.coordination import pause_request
from tandem.controller.history.releasable import ReleaseDocument, release_document
from tandem.controller.status.checkpoint_view import CheckpointStatusReader, WantedCheckpoint, draft_request, hint
from tandem.controller.status.outside_view import view_pair
from tandem.sink.read.scan.range_reader import put_offer, read_range
from tandem.sink.read.scan.range_tasks import RangeTask, offered_ranges
from tandem.sink.store.chain import checkpoints, pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.chain.releases import ReleaseReader
from tandem.spark_jobs.catch_up.plan import CatchUpPace, generation_being_built, remaining_ranges
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.plan.plan import RestorePlan
from tandem.spark_jobs.restore.prepare import prepare

PERSON = "a person"
_IDS = ("one", "two", "three")
_TRIES = 4
#: How long a reader's pin lasts in virtual ms, as fifteen minutes are to the hours that a generation takes.
_PIN_MS = 9_000


class Dawdling(Source):
    """A fetcher that takes its time now and then."""

    def poll(self, timeout_s: float) -> Any:
        """One fetch at most."""
        network = self._network
        if network.random.random() < 0.1:
            network.pause(4 * network.random.random())
        return super().poll(timeout_s)


@dataclass(slots=True)
class Operator:
    """Starts commands and knows which are at work."""

    config: Config
    runtime: Runtime
    cluster: Cluster
    context: Board
    bucket: Bucket
    judge: Judge
    say: Callable[[str], None]
    weather: Weather
    at_work: dict[str, tuple[Process, Network]] = field(default_factory=dict)
    commands: int = 0

    # --- processes ----------------------------------------------------------------------------------------------------

    def _run(self, what: str, command: Callable[[Store, Desk], None]) -> Process:
        """Run a command; what fails for a moment is tried again, as a person does."""
        self.commands += 1
        process = Process(f"{what}#{self.commands}")
        network = Network(self.runtime, process, self.weather, self.kill)
        desk = process.desk = Desk(self.cluster, self.context, network, self.judge.cuts)
        store = Store(self.bucket, network)
        self.at_work[process.name] = (process, network)

        def work() -> None:
            for _ in range(_TRIES):
                try:
                    command(store, desk)
                except TransientError as error:
                    self.say(f"{process.name}: {error}")
                    network.pause(1.0)
                except TandemError as error:
                    self.say(f"{process.name}: {error}")
                    break
                else:
                    break
            self.at_work.pop(process.name, None)

        self.say(f"start {process.name}")
        self.runtime.spawn(process, work, what)
        return process

    def kill(self, process: Process) -> None:
        if not process.dead and process.name in self.at_work:
            self.say(f"kill -9 {process.name}")
            del self.at_work[process.name]
            self.judge.readings.died(process.name)
            self.runtime.kill(process)

    def calm(self, weather: Weather) -> None:
        """Nothing goes wrong from here on."""
        self.weather = weather
        for process, network in self.at_work.values():
            network.weather = weather
            self.runtime.resume(process)

    def end(self) -> None:
        """Let go of all threads."""
        for process, _ in self.at_work.values():
            self.runtime.kill(process)
        self.at_work.clear()

    # --- tandem checkpoint --------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """`tandem checkpoint create`; some follow it until it is settled, the others leave at once."""
        rng = self.runtime.random
        name = rng.choice(_IDS)
        lifetime_ms = rng.randint(10_000, 40_000)
        keep_ms = None if rng.random() < 0.5 else lifetime_ms + rng.randint(1, 30_000)
        follow = rng.random() < 0.4

        def ask(store: Store, desk: Desk) -> None:
            pair = self.config.pair
            if checkpoints.find_checkpoint(store, pair, name) is None:
                wanted = WantedCheckpoint(id=name, lifetime_ms=lifetime_ms, keep_ms=keep_ms, by=PERSON, reason="")
                request = draft_request(self.config, store, wanted)
                assert desk.watch is not None
                self.judge.cuts.asked(request, desk.watch)
                desk.think(4.0)
                if checkpoints.put_request(store, request).request.nonce == request.nonce:
                    hint(self.config, store, request)
            status_reader = CheckpointStatusReader(store, pair, by=PERSON)
            while follow and status_reader.read_status(name).status is CheckpointState.ONGOING:
                desk.network.pause(2.0)

        self._run(f"checkpoint create {name}", ask)

    def forget(self, name: str | None = None) -> None:
        """`tandem checkpoint delete`."""
        wanted = name or self.runtime.random.choice(_IDS)

        def delete(store: Store, desk: Desk) -> None:
            del desk
            found = checkpoints.find_checkpoint(store, self.config.pair, wanted)
            checkpoints.delete_checkpoint(store, self.config.pair, wanted)
            if found is not None:
                hint(self.config, store, found.request)

        self._run(f"checkpoint delete {wanted}", delete)

    def tidy_up(self) -> None:
        """Delete some of the checkpoints, so that the generations that they hold have to go."""
        for name in _IDS:
            if self.runtime.random.random() < 0.5:
                self.forget(name)

    # --- tandem pause, tandem resume ----------------------------------------------------------------------------------

    def pause(self, seconds: float | None = None) -> None:
        """`tandem pause`, else for up to 25 s: longer than it takes to count as dead, and than a rotation."""
        lasting_ms = self.runtime.random.randint(1_000, 25_000) if seconds is None else round(seconds * 1000)

        def ask(store: Store, desk: Desk) -> None:
            desk.think(4.0)
            until = now_ms(store) + lasting_ms
            pause_request.hint(
                self.config, pause_request.put(store, self.config.pair, until=until, by=PERSON, reason="")
            )

        self._run("pause", ask)

    def resume(self) -> None:
        """`tandem resume`, whether there is a pause or not."""

        def ask(store: Store, desk: Desk) -> None:
            del desk
            pause_request.hint(
                self.config, pause_request.put(store, self.config.pair, until=None, by=PERSON, reason="")
            )

        self._run("resume", ask)

    # --- tandem restore -----------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """`tandem restore` of the newest state or of a checkpoint, with a target that takes up to 30 s; some die."""
        rng = self.runtime.random
        options = RestoreOptions(checkpoint=rng.choice(_IDS) if rng.random() < 0.3 else None)
        seconds = 30 * rng.random()
        dies_after = 30 * rng.random() if rng.random() < 0.3 else None
        attempts = iter(range(1 << 30))

        def read(store: Store, desk: Desk) -> None:
            owner = f"{desk.network.process.name}.{next(attempts)}"
            reader = ChainReader(store, self.config.pair)
            plan = plan_of(reader, options)
            desk.think(4.0)
            with pins.hold_pins(store, reader.pair, sorted(plan.basis), owner=owner, lifetime_ms=_PIN_MS):
                desk.think(2.0)
                try:
                    prepare.refuse_if_clearing(reader, plan)
                except RefusedError as error:
                    raise TransientError(f"plans again: {error}", code="TDM-X001") from error
                self.judge.readings.begin(owner, plan)
                self._read(store, desk, plan, seconds)
                self.judge.readings.end(owner)

        process = self._run("restore", read)
        if dies_after is not None:
            self.runtime.at(self.runtime.now + dies_after, lambda: self.kill(process))

    def _read(self, store: Store, desk: Desk, plan: RestorePlan, seconds: float) -> None:
        """Read all objects, one after the other. A task that the store does not answer is tried again."""
        pieces = [piece for topic in plan.topics for item in topic.partitions for piece in item.slices]
        for key in sorted({piece.item.key for piece in pieces}):
            desk.network.pause(seconds / len(pieces))
            for _ in range(_TRIES):
                try:
                    store.get(key)
                except TransientError:
                    desk.network.pause(0.5)
                else:
                    break

    # --- tandem retention ---------------------------------------------------------------------------------------------

    def retain(self, chores: Chores | None = None) -> Process:
        """`tandem retention --horizon --execute`; some are killed, some stand still for longer than their pin lasts."""
        rng = self.runtime.random
        wanted = chores or janitor.draw(rng, least_ms=self.judge.window_ms)
        dies_after = 15 * rng.random() if rng.random() < 0.3 else None
        stands_after = 5 * rng.random() if rng.random() < 0.2 else None

        def clean(store: Store, desk: Desk) -> None:
            self.judge.count(janitor.retain(store, desk, self.config.pair, wanted))

        process = self._run("retention", clean)
        if dies_after is not None:
            self.runtime.at(self.runtime.now + dies_after, lambda: self.kill(process))
        elif stands_after is not None:
            self.runtime.at(self.runtime.now + stands_after, lambda: self._suspend(process, 40 * rng.random()))
        return process

    # --- tandem erase -------------------------------------------------------------------------------------------------

    def erase(self, rng: Random) -> None:
        """`tandem erase` of one key of a topic, after its tombstones; some are killed, some stand still for long."""
        topic, key = rng.choice(("t", "t", "u")), rng.randrange(3)
        dies_after = 10 * rng.random() if rng.random() < 0.3 else None
        stands_after = 5 * rng.random() if rng.random() < 0.2 else None

        def clean(store: Store, desk: Desk) -> None:
            ends = self.judge.erasures.begin(topic, key)
            desk.think(4.0)
            records, is_clean = erasing.erase(store, desk, self.config.pair, topic, key)
            self.judge.erasures.done(records)
            if is_clean:
                self.judge.erasures.clean(key, ends)

        process = self._run(f"erase key {key} of {topic}", clean)
        if dies_after is not None:
            self.runtime.at(self.runtime.now + dies_after, lambda: self.kill(process))
        elif stands_after is not None:
            self.runtime.at(self.runtime.now + stands_after, lambda: self._suspend(process, 40 * rng.random()))

    def _suspend(self, process: Process, seconds: float) -> None:
        if process.name in self.at_work:
            self.say(f"{process.name} is suspended for {seconds:.1f} s")
            self.runtime.pause(process)
            self.runtime.at(self.runtime.now + seconds, lambda: self.runtime.resume(process))

    # --- tandem catch-up ----------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """`tandem catch-up` with two workers, for a while; some dawdle, some read a range again much later."""
        rng = self.runtime.random
        if any(name.startswith("catch-up") for name in self.at_work) and rng.random() < 0.9:
            return
        pace = CatchUpPace(range_offsets=rng.randint(2, 15), chunk_ceiling_s=5.0)
        until = self.runtime.now + 20 * rng.random()

        def job(store: Store, desk: Desk) -> None:
            reader = ChainReader(store, self.config.pair)
            while self.runtime.now < until:
                desk.network.pause(0.5)
                state = generation_being_built(reader.refresh())
                if state is None:
                    continue
                folder = layout.offers_prefix(reader.pair, state.instance, state.number)
                offers = offered_ranges(info.key for info in store.list(folder)).values()
                reader.refresh()
                if state.positions:
                    self._ranges(store, desk, deque(remaining_ranges(state, offers, pace, run="job").ranges))

        self._run("catch-up", job)

    def _ranges(self, store: Store, desk: Desk, tasks: deque[RangeTask]) -> None:
        """Read ranges by two threads, in their order but for those that are read late."""
        workers = [self.runtime.spawn(desk.network.process, lambda: self._worker(store, desk, tasks)) for _ in range(2)]
        while any(worker.is_alive() for worker in workers):
            desk.network.pause(0.5)

    def _worker(self, store: Store, desk: Desk, tasks: deque[RangeTask]) -> None:
        rng = desk.network.random
        while tasks:
            task = tasks.popleft()
            if rng.random() < 0.1:
                tasks.append(task)  # once more, or for the first time, after what lies below it
                if rng.random() < 0.5:
                    continue
            try:
                read = read_range(
                    replace(task, give_up_s=8.0),
                    source=cast("Any", Dawdling(self.cluster, desk.network)),
                    store=store,
                    transcoder=cast("Any", Transcoder()),
                )
                put_offer(store, task, read.offer)
                self.judge.readings.counts["read range"] = self.judge.readings.counts.get("read range", 0) + 1
            except TandemError as error:
                self.say(f"{task.place} is not read: {error}")

    # --- tandem release -----------------------------------------------------------------------------------------------

    def release(self) -> None:
        """`tandem release` of something that may be let go of, if there is anything."""

        def let_go(store: Store, desk: Desk) -> None:
            found = self._parting(store, desk)
            if found is None:
                return
            topic, topic_id = found.topic, found.topic_id
            desk.think(8.0)
            again = release_document(
                view_pair(self.config, store), topic, topic_id=topic_id, partitions=(), generation=None
            )
            if (again.partitions, again.through) != (found.partitions, found.through):
                raise TransientError("the pair has changed since it was shown", code="TDM-X001")
            ReleaseReader(store, self.config.pair).append(
                Release(
                    number=0,
                    pair=found.pair,
                    topic=topic,
                    topic_id=topic_id,
                    partitions=found.partitions,
                    through=found.through,
                    at=now_ms(store),
                    by=PERSON,
                    reason="",
                )
            )

        self._run("release", let_go)

    def _parting(self, store: Store, desk: Desk) -> ReleaseDocument | None:
        seen = view_pair(self.config, store)
        if seen.brokers is None:
            raise TransientError("the brokers do not answer", code="TDM-X001")
        lives = sorted({(topic.name, topic_id) for g in seen.generations for topic_id, topic in g.topics.items()})
        desk.network.random.shuffle(lives)
        for topic, topic_id in lives:
            try:
                found = release_document(seen, topic, topic_id=topic_id, partitions=(), generation=None)
            except (RefusedError, ConfigError):
                continue
            if found.losses:
                return found
        return None
