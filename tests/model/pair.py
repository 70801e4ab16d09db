"""The world around the rules: two instances, their processes, logs, a store, readers and a janitor.

Every step is as small as what others can see of it: one put, one append, one deletion, one read of the chains. Between
two steps of a process anything else may happen, for as long as it likes: a process that is never heard again has
crashed, one that goes on after another took its place is stale. So crashes, pauses and late messages need no steps.
What a process does between its steps mirrors `controller.instance.act`, `sink.write.clear_generation` and
`sink.store.chain.chain_writer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tandem.backup_avro.chain.entries import EntryKind
from tandem.controller.decision.decide import (
    Action,
    AskPeer,
    ClaimNext,
    Clear,
    Complete,
    Drain,
    Halt,
    Seal,
    StartPipeline,
    TakeOver,
)

from .decided import Decider, Lane, Sight
from .packed import READ_THROUGH, SCANNED, SCANNING, Draft, Gen, Part, Rules
from .shown import Shown
from .visitors import Visitors
from .world import ALIVE, GONE, INSTANCES, UNBORN, Bounds, Proc, Run, Task, World, with_

_VERBS = {"Complete": "complete", "Seal": "seal", "Clear": "clear"}


class Pair:
    """The model. Its steps call the production rules through `Rules` and `Decider`."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.shape = bounds.shape
        self.rules = Rules(bounds.shape, counting=bounds.overwriting_entries)
        self.decider = Decider(self.rules)
        self._decided = cache(self._ask)
        self._uncovered = cache(self._judge_seals)
        self.visitors = Visitors(bounds, self.rules)
        self.shown = Shown(bounds.shape)
        self.show = self.shown.world
        self._width = len(bounds.shape.keys)

    def initial(self) -> list[World]:
        """Two processes; nothing in the store, or a first generation that is COMPLETE and read on."""
        bounds, size = self.bounds, self.bounds.generations
        empty: tuple[None, ...] = (None,) * size
        gens: tuple[Gen | None, ...] = empty
        life = bounds.born or (ALIVE,) * self._width
        first = Proc(inc="a1", views=empty, runs=empty)
        if not bounds.from_nothing:
            gen = Gen(owner="a", claimer="a1", parts=(None,) * self._width, versions=(0,) * self._width)
            for draft in self._first_life(life):
                after = self.rules.fold(0, gen, draft)
                assert after is not None
                gen = after
            gens = (gen, *empty[1:])
            first = first._replace(views=(self._view(gen), *empty[1:]), runs=(Run(0), *empty[1:]))
        world = World(
            ends=bounds.ends,
            life=life,
            gens=gens,
            deleted=((0,) * self._width,) * size,
            procs=(first, Proc(inc="b1", views=empty, runs=empty)),
            spawned=(1, 1),
            confirmed=(0,) * self._width,
        )
        return [self._confirm(world)]

    def _first_life(self, life: tuple[int, ...]) -> Iterator[Draft]:
        yield Draft(EntryKind.OPEN, "a1")
        whole = tuple(
            Part(offset=end, base=end, stage=READ_THROUGH) if there == ALIVE else None
            for end, there in zip(self.bounds.ends, life, strict=True)
        )
        yield Draft(EntryKind.COMMIT, "a1", whole)
        yield Draft(EntryKind.COMPLETE, "a1")

    # --- what may happen ----------------------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._cluster(world)
        for index, proc in enumerate(world.procs):
            yield from self._decide(world, index, proc)
            yield from self._pipelines(world, index, proc)
            for task in proc.tasks:
                yield from self._task(world, index, proc, task)
        yield from self._start(world)
        yield from self.visitors.restore(world)
        yield from self.visitors.janitor(world)

    def _cluster(self, world: World) -> Iterator[tuple[str, World]]:
        bounds = self.bounds
        for n in range(self._width):
            if world.life[n] == ALIVE and world.ends[n] < bounds.limits[n]:
                yield (
                    f"a record comes to {self.shown.name(n)}",
                    world._replace(ends=with_(world.ends, n, world.ends[n] + 1)),
                )
            if not bounds.mortal or not bounds.mortal[n]:
                continue
            if world.life[n] == ALIVE:
                yield f"{self.shown.name(n)} is deleted", world._replace(life=with_(world.life, n, GONE))
            same = [m for m in range(self._width) if m != n and self.shape.names[m] == self.shape.names[n]]
            if world.life[n] == UNBORN and all(world.life[m] == GONE for m in same):
                yield f"{self.shown.name(n)} is created", world._replace(life=with_(world.life, n, ALIVE))

    def _start(self, world: World) -> Iterator[tuple[str, World]]:
        for which, me in enumerate(INSTANCES):
            if world.spawned[which] < self.bounds.processes[which]:
                inc = f"{me}{world.spawned[which] + 1}"
                empty: tuple[None, ...] = (None,) * self.bounds.generations
                yield (
                    f"{inc} starts",
                    world._replace(
                        procs=(*world.procs, Proc(inc=inc, views=empty, runs=empty)),
                        spawned=with_(world.spawned, which, world.spawned[which] + 1),
                    ),
                )

    # --- appending ----------------------------------------------------------------------------------------------------

    def _view(self, gen: Gen) -> Gen | bool:
        return gen if self.bounds.overwriting_entries else True

    def _append(self, world: World, index: int, number: int, draft: Draft, view: int) -> World | None:
        """Append as `ChainWriter` does: on a taken number go on from the head, unless the chain has another holder.

        Returns the world without the process if it is fenced, None if the rules refuse the entry.
        """
        proc, gen = world.procs[index], world.gens[number]
        assert gen is not None
        known = proc.views[number]
        if isinstance(known, Gen) and draft.kind is not EntryKind.TAKEOVER:
            after = self.rules.fold(number, known, draft)
            if after is None:
                return None
            # What stood under this number is gone, and what came after it hangs on nothing.
            after = after._replace(damaged=gen.damaged or gen.seq > after.seq)
        else:
            if draft.kind is not EntryKind.TAKEOVER and view != gen.takeovers and not self.bounds.unfenced:
                return world._replace(procs=world.procs[:index] + world.procs[index + 1 :])
            after = None if gen.damaged else self.rules.fold(number, gen, draft)
            if after is None:
                return None
        if known != self._view(after):
            proc = proc._replace(views=with_(proc.views, number, self._view(after)))
        world = world._replace(gens=with_(world.gens, number, after), procs=with_(world.procs, index, proc))
        return self._confirm(world)

    def _confirm(self, world: World) -> World:
        """Note what the COMPLETE generations hold without doubt; here the model judges by itself."""
        confirmed = list(world.confirmed)
        for gen in world.gens:
            if gen is not None and gen.complete:
                confirmed = [max(before, self._sound(gen, n)) for n, before in enumerate(confirmed)]
        after = tuple(confirmed)
        return world if after == world.confirmed else world._replace(confirmed=after)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _decide(self, world: World, index: int, proc: Proc) -> Iterator[tuple[str, World]]:
        for action in self._decided(proc, world.gens, world.life):
            for label, after in self._act(world, index, proc, action):
                yield f"{proc.inc} {label}", after

    def _ask(self, proc: Proc, gens: tuple[Gen | None, ...], life: tuple[int, ...]) -> tuple[Action, ...]:
        lanes = tuple(
            Lane(number, run.draining, run.drained) for number, run in enumerate(proc.runs) if run is not None
        )
        tasks = frozenset((task.name, task.number) for task in proc.tasks)
        alive = tuple(there == ALIVE for there in life)
        return self.decider.actions(Sight(proc.inc, gens, lanes, tasks, alive))

    def _alive(self, world: World) -> tuple[bool, ...]:
        return tuple(life == ALIVE for life in world.life)

    def _act(self, world: World, index: int, proc: Proc, action: Action) -> Iterator[tuple[str, World]]:
        """Begin what was decided. What is asked for may begin late: everything is looked at again in later steps."""
        if isinstance(action, Halt | AskPeer):
            return
        number = action.generation - 1
        match action:
            case ClaimNext() if number < self.bounds.generations:
                yield f"wants to claim {number + 1}", self._with_task(world, index, Task("ClaimNext", number, "put"))
            case TakeOver():
                gen = world.gens[number]
                if gen is not None and gen.takeovers < self.bounds.takeovers:
                    after = self._append(world, index, number, Draft(EntryKind.TAKEOVER, proc.inc), 0)
                    if after is not None:
                        yield f"takes {number + 1} over", after
            case StartPipeline():
                view = self._own(proc, world, number).takeovers
                yield f"reads for {number + 1}", self._with_run(world, index, number, Run(view))
            case Drain():
                run = proc.runs[number]
                assert run is not None
                draining = run._replace(draining=True)
                yield f"stops reading for {number + 1}", self._with_run(world, index, number, draining)
            case Complete() if proc.runs[number] is not None:
                yield from self._begin(world, index, proc, Task("Complete", number, "list"))
            case Seal(successor=successor):
                yield from self._begin(world, index, proc, Task("Seal", number, "list", successor - 1))
            case Clear():
                yield from self._begin_clear(world, index, proc, number)
            case _:
                pass

    def _begin_clear(self, world: World, index: int, proc: Proc, number: int) -> Iterator[tuple[str, World]]:
        run = proc.runs[number]
        if run is not None and run.drained:
            world = self._with_run(world, index, number, None)
        if proc.views[number] is not None and self._own(proc, world, number).clearing >= 0:
            again = Task("Clear", number, "look", view=self._own(proc, world, number).takeovers)
            yield f"goes on clearing {number + 1}", self._with_task(world, index, again)
        else:
            yield from self._begin(world, index, proc, Task("Clear", number, "list"))

    def _own(self, proc: Proc, world: World, number: int) -> Gen:
        """The picture that a process's writer has of a chain it holds."""
        view = proc.views[number]
        gen = view if isinstance(view, Gen) else world.gens[number]
        assert gen is not None
        return gen

    def _begin(self, world: World, index: int, proc: Proc, task: Task) -> Iterator[tuple[str, World]]:
        """Read the chains, then list the topics and judge: in two steps, or in one where topics don't change."""
        if proc.views[task.number] is None:
            return
        task = task._replace(view=self._own(proc, world, task.number).takeovers)
        if self.bounds.listing:
            reading = task._replace(read=world.gens)
            yield f"reads the chains, to {_VERBS[task.name]} {task.number + 1}", self._with_task(world, index, reading)
        else:
            yield from self._judge(world, index, proc, task._replace(read=world.gens))

    def _judge(self, world: World, index: int, proc: Proc, task: Task) -> Iterator[tuple[str, World]]:
        number, read = task.number, task.read
        mine, alive = self._own(proc, world, number), self._alive(world)
        ready = task._replace(step="append", keys=0, read=())
        if task.name == "Complete":
            before = read if task.step == "remember" else ()
            others = world.gens if before else read
            if not self.rules.obstacles(number, mine, with_(others, number, None), alive, before):
                yield f"sees nothing in the way of {number + 1}", self._with_task(world, index, ready)
        elif task.name == "Seal":
            newer = read[task.keys]
            if newer is not None and self.rules.seals(number, mine, task.keys, newer, alive):
                label = f"sees {number + 1} covered by {task.keys + 1}"
                ready = ready._replace(keys=self.rules.marks(number, mine, alive))
                yield label, self._with_task(world, index, ready)
        else:
            goes = self.rules.clearing(number, with_(read, number, mine), alive)
            if goes is not None:
                first = "look first" if self.bounds.pins_before_clearing else "append"
                ready = ready._replace(step=first, keys=goes)
                yield f"sees that {self.shown.names(goes)} of {number + 1} may go", self._with_task(world, index, ready)

    # --- pipelines ----------------------------------------------------------------------------------------------------

    def _pipelines(self, world: World, index: int, proc: Proc) -> Iterator[tuple[str, World]]:
        for number, run in enumerate(proc.runs):
            gen = world.gens[number]
            if run is None or run.drained or gen is None or proc.views[number] is None:
                continue
            if any(task[:2] == ("Complete", number) and task.step != "remember" for task in proc.tasks):
                continue  # it runs between commits
            if not self.bounds.overwriting_entries and run.view != gen.takeovers:
                if run.draft or not self.bounds.split:
                    yield f"{proc.inc} is fenced", world._replace(procs=world.procs[:index] + world.procs[index + 1 :])
                continue
            steps = self._read(world, index, number) if self.bounds.split else self._read_at_once(world, index, number)
            for label, after in (*steps, *self._taint(world, index, number)):
                yield f"{proc.inc} {label} for {number + 1}", after
            if self.bounds.remembers and all(task[:2] != ("Complete", number) for task in proc.tasks):
                look = Task("Complete", number, "remember", view=run.view, read=world.gens)
                yield (
                    f"{proc.inc} notes what the others have, to complete {number + 1}",
                    self._with_task(world, index, look),
                )
            if run.draining and not run.draft:
                stopped = self._with_run(world, index, number, run._replace(drained=True))
                yield f"{proc.inc} has stopped reading for {number + 1}", stopped

    def _read_at_once(self, world: World, index: int, number: int) -> Iterator[tuple[str, World]]:
        """Fetch and commit in one step."""
        proc = world.procs[index]
        run, own = proc.runs[number], self._own(proc, world, number)
        if run is None or own.sealed or own.clearing >= 0:
            return
        for label, parts in self._fetches(world, own.parts):
            after = self._append(world, index, number, Draft(EntryKind.COMMIT, proc.inc, parts), run.view)
            if after is not None:
                yield label, after

    def _read(self, world: World, index: int, number: int) -> Iterator[tuple[str, World]]:
        """Fetch, or commit what was fetched before. After a drain nothing more is fetched."""
        proc = world.procs[index]
        run, own = proc.runs[number], self._own(proc, world, number)
        assert run is not None
        if run.draft:
            after = self._append(world, index, number, Draft(EntryKind.COMMIT, proc.inc, run.draft), run.view)
            if after is not None:
                if len(after.procs) == len(world.procs):
                    after = self._with_run(after, index, number, run._replace(draft=()))
                yield f"commits {self.shown.positions(run.draft)}", after
        if own.sealed or own.clearing >= 0 or run.draining:
            return
        for label, parts in self._fetches(world, run.draft or own.parts):
            yield label, self._with_run(world, index, number, run._replace(draft=parts))

    def _taint(self, world: World, index: int, number: int) -> Iterator[tuple[str, World]]:
        proc = world.procs[index]
        run, own = proc.runs[number], self._own(proc, world, number)
        if run is None or world.taints >= self.bounds.taints or own.sealed or own.clearing >= 0:
            return
        for n, part in enumerate(own.parts):
            if part is not None and part.taint < 0 and not part.removed:
                after = self._append(world, index, number, Draft(EntryKind.TAINTED, proc.inc, keys=1 << n), run.view)
                if after is not None:
                    yield f"taints {self.shown.name(n)}", after._replace(taints=world.taints + 1)

    def _fetches(self, world: World, held: tuple[Part | None, ...]) -> Iterator[tuple[str, tuple[Part | None, ...]]]:
        """Yield what reading a little more leads to, per partition."""
        new = [n for n, part in enumerate(held) if part is None and world.life[n] == ALIVE]
        if new:
            parts = tuple(
                Part(offset=world.ends[n], base=world.ends[n])
                if n in new
                else part and part._replace(removed=world.life[n] == GONE)
                for n, part in enumerate(held)
            )
            yield f"begins with {self.shown.names(sum(1 << n for n in new))}", parts
        for n, part in enumerate(held):
            if part is None or part.removed:
                continue
            if world.life[n] == GONE:
                yield f"sees {self.shown.name(n)} gone", with_(held, n, part._replace(removed=True))
                continue
            end = world.ends[n]
            if part.stage == SCANNING:
                yield (
                    f"scans {self.shown.name(n)}",
                    with_(held, n, part._replace(stage=SCANNED, need=max(end, part.need))),
                )
            stage = SCANNING if part.stage == SCANNING else READ_THROUGH
            if (part.offset, part.stage) != (end, stage):
                at_head = part._replace(offset=end, stage=stage, need=part.need if part.need > end else 0)
                yield f"reads {self.shown.name(n)} up to {end}, the head,", with_(held, n, at_head)
            if self.bounds.pieces and part.offset + 1 < end:
                further = part._replace(offset=part.offset + 1)
                yield f"reads {self.shown.name(n)} up to {further.offset}", with_(held, n, further)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _task(self, world: World, index: int, proc: Proc, task: Task) -> Iterator[tuple[str, World]]:
        idle = self._without(world, index, task)
        if task.step in ("list", "remember"):
            judged = list(self._judge(idle, index, idle.procs[index], task))
            yield from ((f"{proc.inc} {label}", after) for label, after in judged)
            if not judged:
                yield f"{proc.inc} will not {_VERBS[task.name]} {task.number + 1}", idle
            return
        match task.name:
            case "ClaimNext":
                yield from self._claim(world, idle, index, proc, task)
            case "Complete" | "Seal":
                kind = EntryKind.COMPLETE if task.name == "Complete" else EntryKind.SEALED
                after = self._append(idle, index, task.number, Draft(kind, proc.inc, keys=task.keys), task.view)
                yield f"{proc.inc} appends {kind} to {task.number + 1}", after or idle
            case "Clear":
                yield from self._clear(idle, index, proc, task)

    def _claim(self, world: World, idle: World, index: int, proc: Proc, task: Task) -> Iterator[tuple[str, World]]:
        number = task.number
        taken = world.gens[number]
        if task.step == "put":
            if taken is not None and not self.bounds.overwriting_claims:
                yield f"{proc.inc} finds {number + 1} claimed", idle
                return
            if number and world.gens[number - 1] is None:
                return
            gen = Gen(
                owner=proc.me,
                claimer=proc.inc,
                parts=(None,) * self._width,
                versions=(0,) * self._width,
                damaged=taken is not None and bool(taken.holder),  # its OPEN links to the hash of the claim before
            )
            after = idle._replace(gens=with_(idle.gens, number, gen))
            yield f"{proc.inc} claims {number + 1}", self._with_task(after, index, Task("ClaimNext", number, "open"))
            return
        assert taken is not None
        opened = None if taken.damaged else self.rules.fold(number, taken, Draft(EntryKind.OPEN, proc.inc))
        if opened is None:
            yield f"{proc.inc} can't open {number + 1}", idle
            return
        holder = proc._replace(tasks=idle.procs[index].tasks, views=with_(proc.views, number, self._view(opened)))
        yield (
            f"{proc.inc} opens {number + 1}",
            idle._replace(gens=with_(idle.gens, number, opened), procs=with_(idle.procs, index, holder)),
        )

    def _clear(self, idle: World, index: int, proc: Proc, task: Task) -> Iterator[tuple[str, World]]:
        number, gen = task.number, idle.gens[task.number]
        assert gen is not None
        match task.step:
            case "append" | "append late":
                after = self._append(
                    idle, index, number, Draft(EntryKind.CLEARING, proc.inc, keys=task.keys), task.view
                )
                if after is not None and len(after.procs) == len(idle.procs):
                    then = "delete" if task.step == "append late" else "look"
                    after = self._with_task(after, index, task._replace(step=then))
                yield f"{proc.inc} appends CLEARING of {self.shown.names(task.keys)} to {number + 1}", after or idle
            case "look" | "look first":
                if idle.restore is not None and idle.restore.pins(number):
                    yield f"{proc.inc} sees a pin on {number + 1}", idle
                    return
                then = "append late" if task.step == "look first" else "delete"
                yield (
                    f"{proc.inc} sees no pin on {number + 1}",
                    self._with_task(idle, index, task._replace(step=then)),
                )
            case _:
                yield from self._delete(idle, index, proc, task, gen)

    def _delete(self, idle: World, index: int, proc: Proc, task: Task, gen: Gen) -> Iterator[tuple[str, World]]:
        """Delete one partition's objects after the other, then append CLEARED."""
        number = task.number
        goes = gen.clearing if gen.clearing >= 0 else max(gen.cleared, 0)
        left = self._left(idle, number, gen, goes)
        for n in left:
            everything = (1 << gen.versions[n] + 1) - 1
            after = idle._replace(deleted=with_(idle.deleted, number, with_(idle.deleted[number], n, everything)))
            yield f"{proc.inc} deletes {self.shown.name(n)} of {number + 1}", self._with_task(after, index, task)
        if not left:
            appended = self._append(idle, index, number, Draft(EntryKind.CLEARED, proc.inc, keys=goes), task.view)
            yield f"{proc.inc} appends CLEARED to {number + 1}", appended or idle

    def _left(self, world: World, number: int, gen: Gen, goes: int) -> list[int]:
        return [
            n
            for n, part in enumerate(gen.parts)
            if part is not None
            and goes >> n & 1
            and self.rules.object(number, gen, n) is not None
            and world.deleted[number][n] != (1 << gen.versions[n] + 1) - 1
        ]

    # --- the promise --------------------------------------------------------------------------------------------------

    def violation(self, world: World) -> str | None:
        """Say which promise is broken, from the store alone."""
        if any(world.confirmed):
            reach = self.rules.reach(world.gens, world.deleted)
            for n, confirmed in enumerate(world.confirmed):
                if world.life[n] == GONE:
                    if confirmed > self._kept(world, n):
                        return f"{self.shown.name(n)} is gone from the cluster, and so is its last backup"
                elif confirmed > reach[n]:
                    return f"{self.shown.name(n)} was confirmed up to {confirmed}, a restore reaches {reach[n]}"
        uncovered = self._uncovered(world.gens, world.life) if self.bounds.judge_seals else None
        return uncovered or self.visitors.broken(world)

    def _judge_seals(self, gens: tuple[Gen | None, ...], life: tuple[int, ...]) -> str | None:
        """Whoever was sealed takes no more, so another generation must have all of it that the cluster still has."""
        for number, gen in enumerate(gens):
            if gen is None or gen.damaged or not gen.sealed:
                continue
            for n, part in enumerate(gen.parts):
                if part is None or life[n] != ALIVE:
                    continue
                newer = (self._sound(other, n) for other in gens[number + 1 :] if other is not None)
                if part.offset > max(newer, default=0):
                    return f"generation {number + 1} is sealed, and nobody has {self.shown.name(n)} up to {part.offset}"
        return None

    def _sound(self, gen: Gen, n: int) -> int:
        """Up to where a generation holds a partition without doubt, 0 if it does not."""
        part = gen.parts[n]
        if part is None or gen.damaged or not gen.complete or part.stage != READ_THROUGH or part.need:
            return 0
        going = max(gen.clearing, 0) | max(gen.cleared, 0)
        return 0 if going >> n & 1 else part.sound

    def _kept(self, world: World, n: int) -> int:
        """Up to where some complete generation still has a partition that the cluster lost."""
        return max(
            (
                self._sound(gen, n)
                for number, gen in enumerate(world.gens)
                if gen is not None and not world.deleted[number][n] >> gen.versions[n] & 1
            ),
            default=0,
        )

    # --- progress -----------------------------------------------------------------------------------------------------

    def trouble(self, world: World, label: str, after: World) -> bool:
        """Whether it is a taint, the end of a topic, or a step of a process after which one of its name was started."""
        if after.taints != world.taints or after.life.count(GONE) != world.life.count(GONE):
            return True
        return any(label.startswith(f"{proc.inc} ") and not self._newest(world, proc.inc) for proc in world.procs)

    def _newest(self, world: World, inc: str) -> bool:
        return inc == f"{inc[0]}{world.spawned[INSTANCES.index(inc[0])]}"

    def well(self, world: World) -> bool:
        """Whether the newest generation that was claimed is COMPLETE, without a taint and not let go."""
        newest = next((gen for gen in reversed(world.gens) if gen is not None), None)
        return newest is not None and self._fit(newest) and newest.complete and newest.clearing < 0

    def _fit(self, gen: Gen) -> bool:
        return not gen.damaged and all(part is None or part.taint < 0 for part in gen.parts)

    def spent(self, world: World) -> bool:
        """Whether there is no topic; or every number is taken, and nothing comes of the newest one any more."""
        newest = world.gens[-1]
        if ALIVE not in world.life or newest is None:
            return ALIVE not in world.life
        if not self._fit(newest) or newest.clearing >= 0 or newest.cleared >= 0:
            return True
        which = INSTANCES.index(newest.owner)
        heir = f"{newest.owner}{world.spawned[which]}"
        alive = any(proc.inc == heir and not self._fenced(world, proc) for proc in world.procs)
        if not alive:
            return world.spawned[which] >= self.bounds.processes[which]
        if not newest.holder and newest.claimer != heir:
            return True
        mine = (gen for gen in world.gens if gen is not None and gen.owner == newest.owner and gen.holder)
        return any(gen.holder != heir and gen.takeovers >= self.bounds.takeovers for gen in mine)

    def _fenced(self, world: World, proc: Proc) -> bool:
        """Whether a process is about to learn that another one took a chain over that it reads for."""
        return any(
            gen is not None and run is not None and run.view != gen.takeovers
            for gen, run in zip(world.gens, proc.runs, strict=True)
        )

    # --- small changes ------------------------------------------------------------------------------------------------

    def _with_task(self, world: World, index: int, task: Task) -> World:
        proc = world.procs[index]
        tasks = tuple(sorted({*proc.tasks, task}, key=lambda other: other[:2]))
        return world._replace(procs=with_(world.procs, index, proc._replace(tasks=tasks)))

    def _without(self, world: World, index: int, task: Task) -> World:
        proc = world.procs[index]
        tasks = tuple(other for other in proc.tasks if other != task)
        return world._replace(procs=with_(world.procs, index, proc._replace(tasks=tasks)))

    def _with_run(self, world: World, index: int, number: int, run: Run | None) -> World:
        proc = world.procs[index]
        return world._replace(procs=with_(world.procs, index, proc._replace(runs=with_(proc.runs, number, run))))
