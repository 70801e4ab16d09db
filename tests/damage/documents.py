"""The small documents of a backup: what is put beside the chains, and what each reader makes of it.

None of them decides what a restore without a checkpoint reads, so whatever becomes of them, that stays whole. What
they do decide, each reader has to notice: it refuses, or takes what costs nothing but time. Results of drills and
verifications are there too, and shown; nothing rests on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from support.backups.build_backup import CLUSTER, PAIR, Backup

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import GroupOffset
from tandem.backup_avro.documents.checkpoint import CheckpointOutcome, CheckpointRequest, checkpoint_entry
from tandem.backup_avro.documents.outcome import JobKind, encode_outcome
from tandem.backup_avro.documents.outcome import JobOutcome as Result
from tandem.backup_avro.documents.pause import Pause
from tandem.backup_avro.documents.range_offer import RangeOffer, check_offer, decode_offer, encode_offer
from tandem.backup_avro.documents.release import Release
from tandem.backup_avro.errors import DamagedError
from tandem.sink.store import ObjectMissingError, ObjectStore
from tandem.sink.store.chain import checkpoints, pins
from tandem.sink.store.chain.pauses import PauseReader
from tandem.sink.store.chain.releases import ReleaseReader
from tandem.spark_jobs.restore.groups import restore_groups
from tandem.spark_jobs.restore.progress.restore_record import RestoreRecord, TaskRecord, TopicRecord

#: Folders of a pair that hold nothing but small documents; offers lie in those of generations.
FOLDERS: Final = ("pins", "pauses", "releases", "checkpoints", "restores", "results")
#: What a reader says of one that it refuses.
REFUSED: Final = "refused"
_AT: Final = 1_700_000_000_000


def put_all(store: ObjectStore, complete: Backup, building: Backup, pair: str = PAIR) -> None:
    """Put two of each kind: requests with pins, entries and outcomes, one failed and one open; offers not yet taken."""
    key = complete.key("orders", 0)
    for number, name in enumerate(("monday", "tuesday", "wednesday", "open")):
        request = CheckpointRequest(
            id=name, nonce=f"{number}" * 32, pair=pair, cluster_id=CLUSTER, at=_AT, deadline=_AT + 1, keep_until=None,
            by="me", reason="", topics={key.topic_id: "orders"}, cut={key: 40 + number}, witnesses=(complete.number,),
        )  # fmt: skip
        checkpoints.put_request(store, request)
        if name == "wednesday":
            checkpoints.settle_request(
                store, request, CheckpointOutcome(id=name, nonce=request.nonce, at=_AT, by="b", reason="too late")
            )
        elif name != "open":
            checkpoints.pin_generation(store, request, complete.number)
            entry = complete.writer.append(checkpoint_entry(request))
            done = CheckpointOutcome(
                id=name, nonce=request.nonce, at=_AT, by="b", generation=complete.number, seq=entry.seq
            )
            checkpoints.settle_request(store, request, done)
    for number in (1, 2):
        pins.put_pin(store, pair, generation=number, owner="restore", until=_AT, pin_id=f"{number:032d}")
        PauseReader(store, pair).append(
            Pause(number=0, pair=pair, at=_AT, until=_AT + number, by="me", reason=str(number))
        )
        release = Release(
            number=0, pair=pair, topic="gone", topic_id=f"id-{number}", partitions=(0,), through=number, at=_AT,
            by="me", reason="",
        )  # fmt: skip
        ReleaseReader(store, pair).append(release)
        low = 100 * number
        users = building.key("users", 0)
        offer = RangeOffer(
            generation=building.number, key=users, floor=1, leader=1, low=low, high=low + 50, started_at=_AT,
            ended_at=_AT, took_ms=5, objects=(), run="job",
        )  # fmt: skip
        name = layout.offer_name(
            layout.OfferedOffsets(users.topic_id, 0, floor=1, leader=1, low=low, high=low + 50), f"{number:016x}"
        )
        folder = layout.offers_prefix(pair, building.writer.state.instance, building.number)
        store.put_if_absent(folder + name, encode_offer(offer))
        topic = TopicRecord(
            name="orders", topic_id=key.topic_id, partitions=2, target="orders", target_topic_id=f"t{number}",
            ends={0: 9}, tasks=(TaskRecord(sources=(0,), strands={}, page=None),),
        )  # fmt: skip
        record = RestoreRecord(
            id=f"restore{number}", pair=pair, plan="p", generation=2, seq=number, as_of=None, at=_AT,
            target_cluster="c", topics=(topic,), groups={"g": (GroupOffset(key=key, offset=number),)},
        )  # fmt: skip
        restore_groups.leave(store, record)
        result = Result(
            kind=JobKind.DRILL, pair=pair, at=_AT + number, by="me", clean=True, what="all", findings=0,
            records=number, bytes=9, generations={1: number}, phases={},
        )  # fmt: skip
        store.put_if_absent(f"{layout.result_prefix(pair, 'drill')}{_AT + number}-00.json", encode_outcome(result))


def read_all(store: ObjectStore, known: frozenset[str]) -> dict[str, object]:
    """Read the documents of the keys `known` as who goes by them does; None for what is gone, REFUSED as it says."""
    return {name: _tried(read) for name, read in _readers(store, known)}


def fits(name: str, found: object, sound: object) -> bool:
    """Whether what a reader made of a document is what was written, or a refusal, and not another one."""
    match name, found, sound:
        case "pause", None, _:
            return True  # turns go on
        case "pause", Pause(), Pause():
            return found == sound or found.number < sound.number  # one that is forged says nothing
        case "releases", tuple(), tuple():
            return set(found) <= set(sound)  # nothing goes because of what is missing
        case _:
            return found in (sound, REFUSED)


def _tried(read: Callable[[], object]) -> object:
    try:
        return read()
    except ObjectMissingError:
        return None
    except DamagedError:
        return REFUSED


def _readers(store: ObjectStore, known: frozenset[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "pause", lambda: PauseReader(store, PAIR).refresh()
    yield "releases", lambda: ReleaseReader(store, PAIR).refresh(tolerant=True)
    for name in ("monday", "tuesday", "wednesday", "open"):
        yield f"checkpoint {name}", lambda name=name: checkpoints.find_checkpoint(store, PAIR, name)  # type: ignore[misc]
    for key in sorted(known):
        if layout.is_offer(key):
            yield key, lambda key=key: _offer(store, key)  # type: ignore[misc]
        elif "/restores/" in key:
            yield key, lambda key=key: restore_groups.load(store, PAIR, key.split("/")[2])  # type: ignore[misc]
        elif "/pins/" in key:
            yield key, lambda key=key: _pin(store, key)  # type: ignore[misc]


def _offer(store: ObjectStore, key: str) -> RangeOffer:
    offer = decode_offer(store.get(key), key)
    check_offer(offer, key)
    return offer


def _pin(store: ObjectStore, key: str) -> Any:
    """A pin that can't be read keeps everything: that is how it is refused."""
    name = key.rpartition("/")[2].removesuffix(".json")
    found = next((pin for pin in pins.list_pins(store, PAIR) if pin.id == name), None)
    return REFUSED if found is not None and found.generation is None else found
