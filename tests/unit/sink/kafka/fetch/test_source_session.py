"""FetchSession against a model of the broker's side of KIP-227, and the proofs of being at head."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.wire.sessions import FetchPlan, FetchSession, PartitionRequest

ID = UUID(int=7)
TPS = [TopicPartition("t", number) for number in range(5)]


def ask(tp: TopicPartition, offset: int, *, serial: int = 0, topic_id: UUID | None = ID) -> PartitionRequest:
    """What a request says about `tp`."""
    return PartitionRequest(
        partition=tp.partition,
        current_leader_epoch=3,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        partition_max_bytes=100,
        topic_id=topic_id,
        serial=serial,
    )


@dataclass
class Answer:
    """A response: what it lists, as (high watermark, stable offset, number of readable records)."""

    session_id: int
    listed: dict[TopicPartition, tuple[int, int, int]] = field(default_factory=dict)
    error: int = 0


@dataclass
class Log:
    """A partition on the broker. Offsets in `gone` have been compacted away."""

    high_watermark: int = 0
    stable: int = 0
    gone: set[int] = field(default_factory=set)

    def readable(self, offset: int) -> int:
        """How many records a read_committed reader finds from `offset` on."""
        return len(set(range(offset, self.stable)) - self.gone)


class Broker:
    """The broker's side: sessions as in FetchSession.CachedPartition, a limit of records per response."""

    def __init__(self) -> None:
        self.logs = {tp: Log() for tp in TPS}
        self.session: dict[TopicPartition, list[int]] | None = None  # tp -> [offset, told high watermark]
        self.session_id = 0
        self.epoch = 0

    def answer(self, plan: FetchPlan, *, limit: int = 10**9) -> Answer:
        """Serve one request; at most `limit` records, but always one."""
        if plan.epoch == 0:
            self.session = {tp: [what.fetch_offset, -1] for tp, what in plan.send}
            self.session_id += 1
            self.epoch = 1
        else:
            if self.session is None or plan.session_id != self.session_id:
                return Answer(0, error=70)
            if plan.epoch != self.epoch:
                return Answer(0, error=71)
            self.epoch += 1
            for tp, what in plan.send:
                told = self.session[tp][1] if tp in self.session else -1
                self.session[tp] = [what.fetch_offset, told]
            for tp, _ in plan.forget:
                self.session.pop(tp, None)
        listed = {}
        left = limit
        for tp, entry in self.session.items():
            log = self.logs[tp]
            records = log.readable(entry[0])
            if left != limit:
                records = min(records, left)
            left = max(left - records, 0)
            if plan.epoch == 0 or records or entry[1] != log.high_watermark:
                listed[tp] = (log.high_watermark, log.stable, records)
                entry[1] = log.high_watermark
        return Answer(self.session_id, listed)


def test_a_session_starts_full_and_goes_on_with_changes() -> None:
    """The first request names all, the next ones only what changed, was added or fell away."""
    session = FetchSession()
    for tp in TPS[:3]:
        session.want(tp, ask(tp, 0))
    plan = session.next_request()
    assert (plan.session_id, plan.epoch, len(plan.send), plan.forget, plan.by_id) == (0, 0, 3, (), True)
    assert session.accepted(9, TPS[:3])
    plan = session.next_request()
    assert (plan.session_id, plan.epoch, plan.send, plan.forget) == (9, 1, (), ())
    assert session.accepted(9, [])
    session.want(TPS[0], ask(TPS[0], 5))
    session.want(TPS[3], ask(TPS[3], 0))
    session.drop(TPS[1])
    session.drop(TPS[2])
    session.want(TPS[2], ask(TPS[2], 0))
    plan = session.next_request()
    assert {tp: what.fetch_offset for tp, what in plan.send} == {TPS[0]: 5, TPS[3]: 0}
    assert plan.forget == ((TPS[1], ID),)
    assert (plan.session_id, plan.epoch) == (9, 2)


def test_what_ends_a_session() -> None:
    """Broken connections, refused epochs and lost ids lead to a full request; only a live id is named for closing."""
    for end, named in (("broken", 9), ("epoch", 9), ("id", 0), ("closed", 0), ("stray", 9)):
        session = FetchSession()
        session.want(TPS[0], ask(TPS[0], 0))
        session.next_request()
        session.accepted(9, TPS[:1])
        session.next_request()
        if end == "broken":
            session.broken()
        elif end == "epoch":
            session.refused(71)
        elif end == "id":
            session.refused(70)
        elif end == "closed":
            assert session.accepted(0, [])
        else:
            assert not session.accepted(9, [TPS[4]])
        plan = session.next_request()
        assert (plan.session_id, plan.epoch, [tp for tp, _ in plan.send]) == (named, 0, TPS[:1]), end


def test_a_full_response_must_list_all() -> None:
    """A full response that leaves something out (as a throttled one does) proves nothing and opens no session."""
    session = FetchSession()
    for tp in TPS[:2]:
        session.want(tp, ask(tp, 0))
    session.next_request()
    assert not session.accepted(0, [])
    assert session.next_request().epoch == 0


def test_ids_and_names_never_mix() -> None:
    """When a topic without id comes in, or an id changes, the session is closed and opened anew."""
    session = FetchSession()
    session.want(TPS[0], ask(TPS[0], 0))
    assert session.next_request().by_id
    session.accepted(9, TPS[:1])
    session.want(TPS[1], ask(TPS[1], 0, topic_id=None))
    plan = session.next_request()
    assert (plan.by_id, plan.epoch, plan.session_id, len(plan.send)) == (False, 0, 9, 2)
    session.accepted(10, TPS[:2])
    session.drop(TPS[1])
    session.want(TPS[0], ask(TPS[0], 0, topic_id=UUID(int=8)))
    plan = session.next_request()
    assert (plan.by_id, plan.epoch, len(plan.send)) == (True, 0, 1)


def test_the_epoch_wraps() -> None:
    """After the highest epoch comes 1, as the broker has it."""
    session = FetchSession()
    session.want(TPS[0], ask(TPS[0], 0))
    session.next_request()
    session.accepted(9, TPS[:1])
    session._epoch = 2**31 - 1
    session.next_request()
    session.accepted(9, [])
    assert session.next_request().epoch == 1


def test_the_same_evidence_is_the_same_object() -> None:
    """Idle partitions cost nothing per response: the mapping is made anew only when something changed."""
    session = FetchSession()
    for tp in TPS:
        session.want(tp, ask(tp, 4))
        session.at_head(tp, 4, in_txn=False)
    first = session.proven_at_head()
    session.at_head(TPS[0], 4, in_txn=False)
    assert session.proven_at_head() is first
    session.drop(TPS[0])
    assert session.proven_at_head() is not first
    assert session.proven_at_head() == dict.fromkeys(TPS[1:], 4)


def test_evidence_ends_with_the_ask() -> None:
    """A partition asked for elsewhere is not at head until it is told so again."""
    session = FetchSession()
    session.want(TPS[0], ask(TPS[0], 4))
    session.at_head(TPS[0], 4, in_txn=True)
    session.want(TPS[0], ask(TPS[0], 2, serial=1))
    assert session.proven_at_head() == {}
    assert session.left_out_in_txn([]) == set()
    session.at_head(TPS[1], 4, in_txn=False)  # never asked for
    assert session.proven_at_head() == {}


class History:
    """A broker, and a reader that is driven as the fetcher drives it; proofs are checked as they come."""

    def __init__(self) -> None:
        self.broker, self.session = Broker(), FetchSession()
        self.position = dict.fromkeys(TPS, 0)
        self.known = dict.fromkeys(TPS, (-1, -1))  # end and high watermark last told
        self.open_txn: set[TopicPartition] = set()
        self.racing: set[TopicPartition] = set()
        self.out: set[TopicPartition] = set()
        self.unclear: set[TopicPartition] = set()
        self.serial = 0
        self.proofs: list[dict[TopicPartition, int]] = []
        for tp in TPS:
            self.want(tp)

    def want(self, tp: TopicPartition) -> None:
        """Ask for `tp` at its position."""
        self.serial += 1
        self.session.want(tp, ask(tp, self.position[tp], serial=self.serial))

    def append(self, tp: TopicPartition, amount: int) -> None:
        """Records come; behind an open transaction they are not stable."""
        log = self.broker.logs[tp]
        log.high_watermark += amount
        if tp not in self.open_txn and tp not in self.racing:
            log.stable = log.high_watermark

    def open(self, tp: TopicPartition, _: int) -> None:
        if tp not in self.racing:
            self.open_txn.add(tp)
            self.broker.logs[tp].high_watermark += 1

    def close(self, tp: TopicPartition, amount: int) -> None:
        self.race(tp, amount)
        self.settle()

    def race(self, tp: TopicPartition, _: int) -> None:
        """A transaction ends, and until the next response the watermark has moved, the stable offset has not."""
        if tp in self.open_txn:
            self.open_txn.discard(tp)
            self.broker.logs[tp].high_watermark += 1
            self.racing.add(tp)

    def settle(self) -> None:
        """Stable offsets catch up."""
        for tp in self.racing:
            self.broker.logs[tp].stable = self.broker.logs[tp].high_watermark
        self.racing.clear()

    def compact(self, tp: TopicPartition, amount: int) -> None:
        """The last stable records are compacted away."""
        log = self.broker.logs[tp]
        log.gone |= set(range(max(log.stable - amount, 0), log.stable))

    def lose(self, _: TopicPartition, __: int) -> None:
        """A request is lost with its connection."""
        self.session.next_request()
        self.session.broken()

    def seek(self, tp: TopicPartition, amount: int) -> None:
        """The reader goes back."""
        self.position[tp] = max(self.position[tp] - amount, 0)
        if tp not in self.out:
            self.want(tp)

    def leave(self, tp: TopicPartition, _: int) -> None:
        """The reader leaves a partition out."""
        self.out.add(tp)
        self.session.drop(tp)

    def come_back(self, tp: TopicPartition, _: int) -> None:
        """The reader takes a partition in again."""
        if tp in self.out:
            self.out.discard(tp)
            self.want(tp)

    def read(self, _: TopicPartition, __: int) -> None:
        """One request and its whole answer."""
        self._fetch(limit=10**9)

    def squeeze(self, _: TopicPartition, __: int) -> None:
        """One request, and an answer with room for one record."""
        self._fetch(limit=1)

    def _fetch(self, *, limit: int) -> None:
        session = self.session
        plan = session.next_request()
        for tp, what in plan.send:
            end, high = self.known[tp]
            if 0 <= end <= what.fetch_offset:
                session.at_head(tp, end, in_txn=end < high)
        answer = self.broker.answer(plan, limit=limit)
        assert not answer.error
        assert session.accepted(answer.session_id, answer.listed)
        complete = not any(records for _, _, records in answer.listed.values())
        self._listed(answer.listed, complete=complete)
        for tp, _ in session.left_out(answer.listed):
            end, high = self.known[tp]
            if complete and end >= 0:
                session.at_head(tp, end, in_txn=end < high)
        self.unclear = session.left_out_in_txn(answer.listed)
        proven = session.proven_at_head(set() if complete else self.unclear)
        for tp, end in proven.items():
            assert tp not in self.out
            assert self.broker.logs[tp].readable(self.position[tp]) == 0, tp
            assert end <= self.broker.logs[tp].high_watermark
        self.proofs.append(dict(proven))
        self._used(answer.listed)
        self.settle()

    def probe(self) -> None:
        """What may have a newer end without a word is asked for on its own, as the fetcher does once a second."""
        listed = {}
        for tp in self.unclear:
            log = self.broker.logs[tp]
            listed[tp] = (log.high_watermark, log.stable, log.readable(self.position[tp]))
        self._listed(listed, complete=not any(records for _, _, records in listed.values()))
        self._used(listed)

    def _listed(self, listed: dict[TopicPartition, tuple[int, int, int]], *, complete: bool) -> None:
        for tp, (high, stable, records) in listed.items():
            self.known[tp] = (stable, high)
            if not records and (complete or self.position[tp] >= stable):
                self.session.at_head(tp, stable, in_txn=stable < high)
            else:
                self.session.not_at_head(tp)

    def _used(self, listed: dict[TopicPartition, tuple[int, int, int]]) -> None:
        for tp, (_, _, records) in listed.items():
            left = records
            while left:
                left -= self.position[tp] not in self.broker.logs[tp].gone
                self.position[tp] += 1
            if records:
                self.want(tp)


STEPS = ("append", "open", "close", "race", "compact", "lose", "seek", "leave", "come_back", "read", "read", "squeeze")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(TPS), st.integers(0, 4)), max_size=60))
def test_whatever_is_proven_is_true(steps: list[tuple[str, TopicPartition, int]]) -> None:
    """In any history, nothing is readable from the position of a partition that a response proves to be at head."""
    history = History()
    for kind, tp, amount in steps:
        getattr(history, kind)(tp, amount)


def test_an_end_that_moves_without_the_watermark() -> None:
    """The one way in which an omitted partition may have news: told too early, then squeezed out of a full response."""
    history = History()
    busy, late = TPS[0], TPS[1]
    history.read(late, 0)
    history.open(late, 0)
    history.read(late, 0)
    history.race(late, 0)
    history.read(late, 0)
    assert history.proofs[-1][late] == 0  # true: that was the stable offset in this response
    history.append(busy, 1)
    history.squeeze(late, 0)  # the assertion inside: no proof for `late`
    assert late not in history.proofs[-1]
    assert TPS[2] in history.proofs[-1]
    history.read(late, 0)
    history.read(late, 0)
    assert history.proofs[-1] == {tp: history.broker.logs[tp].stable for tp in TPS}


def test_a_tail_that_was_compacted_away() -> None:
    """A position below the end with nothing in between is proven at head by a response without records."""
    history = History()
    history.append(TPS[0], 4)
    history.compact(TPS[0], 2)
    history.read(TPS[0], 0)
    assert history.position[TPS[0]] == 2
    assert TPS[0] not in history.proofs[-1]
    history.read(TPS[0], 0)
    assert history.proofs[-1][TPS[0]] == 4


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(TPS), st.integers(0, 4)), max_size=60))
def test_quiet_brings_proof_of_all(steps: list[tuple[str, TopicPartition, int]]) -> None:
    """After any history, a few undisturbed responses prove every partition at head with its end as it is."""
    history = History()
    for kind, tp, amount in steps:
        getattr(history, kind)(tp, amount)
    for tp in TPS:
        history.come_back(tp, 0)
    for _ in range(3):
        history.read(TPS[0], 0)
        history.probe()
    history.read(TPS[0], 0)
    assert history.proofs[-1] == {tp: history.broker.logs[tp].stable for tp in TPS}


def test_an_end_that_moves_without_a_word() -> None:
    """A whole transaction that ends between two answers, and is gone before the next: only a probe finds its end."""
    history = History()
    tp = TPS[0]
    history.open(tp, 0)
    history.race(tp, 0)
    history.read(tp, 0)
    history.compact(tp, 2)
    for _ in range(3):
        history.read(tp, 0)
    assert history.proofs[-1][tp] == 0  # true, nothing is readable from there, but not the newest end
    assert history.unclear == {tp}
    history.probe()
    history.read(tp, 0)
    assert history.proofs[-1][tp] == 2
    assert history.unclear == set()
