"""Virtual time and simulated threads: one real thread, one greenlet for each simulated one, one seed for all choices.

The production modules use `threading`, `queue`, `time` and thread pools. `patching` puts the classes of this module in
their place. A simulated thread runs until it waits; which one goes on then is drawn from the seed. Nothing here reads a
real clock, so the same seed always gives the same history.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

_T = TypeVar("_T")


class KilledError(BaseException):
    """Raised in the threads of a process that was killed. No `except Exception` catches it, nothing it does counts."""


class SpinningError(RuntimeError):
    """A thread does the same again and again and never waits: in the real world it would burn a core."""


#: What all clocks show at virtual second 0 if nobody sets them: 2026-01-01.
EPOCH_S = 1_767_225_600.0

#: Looks at the clock without its going on that no thread has a reason for.
_SPINNING = 200_000


class Process:
    """One simulated operating-system process: killed or suspended as a whole. `failure` ended it, if anything did."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self.clock_s = 0.0
        """What the clock of its machine shows, less that of all."""
        self.open_source: Callable[[], Any] = lambda: None
        self.desk: Any = None
        self.office: Any = None
        self.held: list[Thread] = []
        self.threads: list[Thread] = []


class Runtime:
    """The scheduler. `now` is virtual monotonic seconds."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._bits = self.random.getrandbits
        self.now = 1000.0
        self._timers: list[tuple[float, int, Callable[[], None] | None, Thread | None, int]] = []
        self._count = 0
        self._ready: list[Thread] = []
        self.hub = getcurrent()
        self.current: Thread | None = None
        self.failure: BaseException | None = None
        self.switches = 0
        self.looks = 0
        self.free: list[greenlet] = []
        """Greenlets whose thread has ended: each has a stack of its own, so the next threads take them over."""

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call from outside all processes at `when`."""
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, call, None, 0))

    def spawn(self, process: Process, work: Callable[[], None], name: str = "") -> Thread:
        """Start a thread of a process."""
        thread = Thread(target=work, name=name, process=process)
        thread.start()
        return thread

    def run(self, until: float) -> None:
        """Let everything happen that happens before `until`. Raises what a thread or call let out."""
        self.hub = getcurrent()
        ready, timers = self._ready, self._timers
        while self.failure is None:
            thread = self._next() if ready else None
            if thread is not None:
                self.current = thread
                thread.seat().switch()
                self.current = None
                continue
            if not timers or timers[0][0] > until:
                self.now = until
                return
            when, _, call, sleeper, ticket = heapq.heappop(timers)
            if when > self.now:
                self.now = when
                self.looks = 0
            if call is not None:
                call()
            elif sleeper is not None and sleeper.ticket == ticket and not sleeper.queued:
                sleeper.queued = True
                ready.append(sleeper)
        raise self.failure

    def _next(self) -> Thread | None:
        """Draw which of the threads that are ready goes on, None if none does."""
        ready = self._ready
        while ready and self.failure is None:
            thread = ready.pop(self.below(len(ready)) if len(ready) > 1 else 0)
            process = thread.process
            if process.dead:
                continue
            if process.paused:
                process.held.append(thread)
                continue
            self.switches += 1
            return thread
        return None

    def below(self, count: int) -> int:
        """Draw a number in [0, count), as `random.Random.randrange` does it, without its questions."""
        bits = count.bit_length()
        number = self._bits(bits)
        while number >= count:
            number = self._bits(bits)
        return number

    def park(self, timeout: float | None) -> bool:
        """Wait until woken or for `timeout` seconds; return whether woken."""
        me = self.me()
        me.ticket += 1
        me.queued = me.woken = False
        if timeout is not None:
            self._count += 1
            when = self.now + timeout if timeout > 0.0 else self.now
            heapq.heappush(self._timers, (when, self._count, None, me, me.ticket))
        following = self._next() if self._ready else None
        if following is None:
            self.hub.switch()
        elif following is not me:  # the hub would do nothing but switch on
            self.current = following
            following.seat().switch()
        if me.process.dead:
            raise KilledError
        return me.woken

    def wake(self, thread: Thread) -> None:
        """Let a parked thread go on."""
        if not thread.queued:
            thread.queued = thread.woken = True
            self._ready.append(thread)

    def me(self) -> Thread:
        """Return the thread that runs. KilledError if its process is dead."""
        me = self.current
        assert me is not None, "only simulated threads wait"
        if me.process.dead:
            raise KilledError
        return me

    def kill(self, process: Process) -> None:
        """End a process where it stands."""
        process.dead = True
        for thread in process.threads:
            if thread.greenlet is not None and thread is not self.current:
                was, self.current = self.current, thread
                try:
                    thread.greenlet.parent = getcurrent()
                    thread.greenlet.throw(KilledError)
                finally:
                    self.current = was
        process.threads.clear()
        process.held.clear()

    def end(self) -> None:
        """Let go of all that a history has left; nothing runs any more."""
        self._timers.clear()
        self._ready.clear()
        for seat in self.free:
            seat.parent = getcurrent()  # who goes on when it ends; it may have been another one of these
            seat.throw(GreenletExit)
        self.free.clear()

    def pause(self, process: Process) -> None:
        """Suspend a process (SIGSTOP)."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """Let it go on (SIGCONT)."""
        process.paused = False
        held, process.held = process.held, []
        self._ready.extend(held)


_runtime: list[Runtime] = []


def install(runtime: Runtime) -> None:
    """Make `runtime` the one that all simulated threads belong to."""
    _runtime[:] = [runtime]


def here() -> Runtime:
    """Return the runtime in use."""
    return _runtime[0]


def _sit() -> None:
    """Run the thread that was given this greenlet, and go back to whoever waits for that; then the next one."""
    runtime, me = here(), getcurrent()
    while True:
        thread = runtime.current
        assert thread is not None
        thread.run()
        thread.greenlet = None
        del thread
        runtime.free.append(me)
        assert me.parent is not None
        me.parent.switch()


class Thread:
    """Stands for `threading.Thread`."""

    def __init__(
        self,
        target: Callable[..., None],
        *,
        name: str = "",
        args: tuple[Any, ...] = (),
        daemon: bool = True,
        process: Process | None = None,
    ) -> None:
        del daemon
        runtime = here()
        self.process = process or runtime.me().process
        self.name = name
        self.ticket = 0
        self.queued = self.woken = False
        self._work = lambda: target(*args)
        self._joiners: list[Thread] = []
        self._alive = False
        self.greenlet: greenlet | None = None
        """Where it runs, from its first step to its end."""

    def start(self) -> None:
        """Make it ready to run."""
        self._alive = True
        self.process.threads.append(self)
        here().wake(self)

    def seat(self) -> greenlet:
        """Return where it runs."""
        if self.greenlet is None:
            runtime = here()
            self.greenlet = runtime.free.pop() if runtime.free else greenlet(_sit)
            self.greenlet.parent = runtime.hub
        return self.greenlet

    def run(self) -> None:
        """Do its work, to its end or that of its process."""
        runtime = here()
        try:
            if not self.process.dead:
                self._work()
        except KilledError:
            pass
        except GreenletExit:  # nobody knows of it any more
            raise
        except BaseException as error:  # noqa: BLE001 (a thread of the simulated code died: the history shows why)
            runtime.failure = runtime.failure or error
        self._alive = False
        if not self.process.dead:
            self.process.threads.remove(self)
            for joiner in self._joiners:
                runtime.wake(joiner)

    def is_alive(self) -> bool:
        return self._alive

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        runtime = here()
        deadline = None if timeout is None else runtime.now + timeout
        while self._alive and (deadline is None or runtime.now < deadline):
            self._joiners.append(runtime.me())
            runtime.park(None if deadline is None else deadline - runtime.now)


class Event:
    """Stands for `threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[Thread] = []

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it and wake who waits."""
        self._set = True
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for thread in waiters:
                here().wake(thread)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        runtime = _runtime[0]
        me = runtime.me()
        if self._set:
            return True
        deadline = None if timeout is None else runtime.now + timeout
        while not self._set and (deadline is None or runtime.now < deadline):
            self._waiters.append(me)
            runtime.park(None if deadline is None else deadline - runtime.now)
            if me in self._waiters:
                self._waiters.remove(me)
        return self._set


class Lock:
    """Stands for `threading.Lock` and `RLock`."""

    def __init__(self) -> None:
        self._owner: Thread | None = None
        self._depth = 0
        self._waiters: deque[Thread] = deque()

    def __enter__(self) -> Self:
        runtime = _runtime[0]
        me = runtime.current
        if me is None:  # asked from outside, between two steps
            return self
        while self._owner is not None and self._owner is not me:
            self._waiters.append(me)
            runtime.park(None)
        self._owner = me
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        if _runtime[0].current is None:
            return
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            if self._waiters:
                here().wake(self._waiters.popleft())


class Queue(Generic[_T]):
    """Stands for `queue.Queue` and `SimpleQueue`, without a bound."""

    def __init__(self) -> None:
        self._items: deque[_T] = deque()
        self._waiters: deque[Thread] = deque()

    def put(self, item: _T) -> None:
        """Add at the end."""
        self._items.append(item)
        if self._waiters:
            here().wake(self._waiters.popleft())

    def get(self) -> _T:
        """Take from the front, waiting for something."""
        runtime = _runtime[0]
        while not self._items:
            self._waiters.append(runtime.me())
            runtime.park(None)
        return self._items.popleft()

    def empty(self) -> bool:
        """Whether nothing is in it."""
        return not self._items


class Future(Generic[_T]):
    """Stands for `concurrent.futures.Future`."""

    def __init__(self) -> None:
        self._done = Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self._begun = self._off = False

    def cancel(self) -> bool:
        """Call it off unless it was begun."""
        self._off = not self._begun
        return self._off

    def begin(self) -> bool:
        """Begin, unless it was called off; return which."""
        self._begun = True
        return not self._off

    def settle(self, work: Callable[[], _T]) -> None:
        """Run the work and keep its outcome."""
        try:
            self._value = work()
        except Exception as error:  # noqa: BLE001 (it is the asker's)
            self._error = error
        self._done.set()

    def done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    def exception(self) -> BaseException | None:
        """Wait; return what it raised."""
        self._done.wait()
        return self._error

    def result(self) -> _T:
        """Wait; return its value or raise."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[no-any-return]  # what the work returned


class Executor:
    """Stands for `ThreadPoolExecutor`."""

    def __init__(self, max_workers: int = 4, thread_name_prefix: str = "") -> None:
        self._free = max_workers
        self._name = thread_name_prefix
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running: dict[Thread, None] = {}
        self._closed = False

    def submit(self, work: Callable[..., _T], *args: Any) -> Future[_T]:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[_T] = Future()
        self._waiting.append((future, lambda: work(*args)))
        if self._free > 0:
            self._free -= 1
            thread = Thread(self._work, name=self._name)
            self._running[thread] = None
            thread.start()
        return future

    def _work(self) -> None:
        while self._waiting:
            future, work = self._waiting.popleft()
            future.settle(work)
        self._free += 1
        self._running.pop(here().me(), None)

    def map(self, work: Callable[..., _T], items: Iterable[Any]) -> Iterator[_T]:
        """Run over all items; yield in order."""
        futures = [self.submit(work, item) for item in items]
        for future in futures:
            yield future.result()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End after what runs."""
        self._closed = True
        if cancel_futures:
            self._waiting.clear()
        if wait:
            for thread in list(self._running):
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End after all work."""
        self.shutdown()


class Threading:
    """Stands for the module `threading`."""

    Thread = Thread
    Event = Event
    Lock = Lock
    RLock = Lock


class Queues:
    """Stands for the module `queue`."""

    Queue = Queue
    SimpleQueue = Queue


class Time:
    """Stands for the module `time`."""

    @staticmethod
    def monotonic() -> float:
        runtime = _runtime[0]
        runtime.looks += 1
        if runtime.looks > _SPINNING:
            name = runtime.current.name if runtime.current is not None else ""
            runtime.failure = runtime.failure or SpinningError(f"thread {name} never waits")
            raise KilledError
        return runtime.now

    @staticmethod
    def sleep(seconds: float) -> None:
        """Let virtual time pass."""
        here().park(seconds)

    @staticmethod
    def time() -> float:
        """What the clock of this process's machine shows."""
        runtime = _runtime[0]
        return EPOCH_S + runtime.now + runtime.me().process.clock_s
