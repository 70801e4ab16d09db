"""Names in the store. Every key is relative to the root that the user configures; no other module builds keys.

A key holds only validated parts: pair and instance names, Kafka topic names, numbers and a nonce.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from tandem.backup_avro.errors import ConfigError, DamagedError

GenerationPlace: TypeAlias = tuple[str, str, int]
"""Pair, instance and number of a generation."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: Most characters that Kafka allows for the name of a topic.
LONGEST_TOPIC = 249
_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_TOPIC}}}")
_CLAIM = re.compile(r"(\d{8})\.json", re.ASCII)
_OFFER = re.compile(r"([A-Za-z0-9_-]+)\+(\d+)\+(\d+)\+(\d+)\+(\d{20})\+(\d{20})\+[0-9a-f]+\.json", re.ASCII)
_SIGNED = re.compile(
    r"[^/]+/(?:(?:generations|releases|pauses|checkpoints|restores/targets)/|[^/]+/generation=\d+/offers/).+", re.ASCII
)
_SWEPT = "swept-"
_DATA = re.compile(r"([^/]+)/[^/]+/generation=(\d{8})/.", re.ASCII)
_PARTITION = re.compile(r"[^/]+/[^/]+/generation=\d{8}/topics/([^/]+)/partition=(\d+)/.+", re.ASCII)
_OFFERED = re.compile(r"[^/]+/[^/]+/generation=\d{8}/offers/.+", re.ASCII)
_JOURNAL = re.compile(r"/journal/(\d{20})\+[^/]*\.avro$", re.ASCII)
_MARKED = re.compile(r"\+([0-9a-f]{7}|workers)-[0-9a-f]{8}\.avro$", re.ASCII)
_NAME_BYTES = 240
"""Most bytes of a data object's name without its folder: file systems, and servers on them, allow 255 per segment."""
_NAME_REST = len("+2147483647") + 2 * len("+00000000000000000000") + len("+swept-0123456789abcdef.avro")
_HASH_DIGITS = 16

#: The highest generation number that a key has digits for.
LAST_GENERATION = 10**8 - 1
#: Folders of a pair beside those of its instances, so no instance may have such a name.
FOLDERS = frozenset({"generations", "pins", "checkpoints", "releases", "restores", "results", "pauses"})
#: Prefix of the names of objects that test a store; they lie beside these folders too.
PROBES = "probe-"
#: The mark in names of objects that belong to no incarnation: ranges that workers and catch-up jobs have read.
NOBODY = "workers"
#: Kafka's own topics, which are never restored as they are. Other topics may begin with underscores too.
INTERNAL_TOPICS = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
        "__remote_log_metadata",
    }
)


def check_name(name: str, what: str) -> str:
    """Return `name` if it is valid in a key as a pair, instance or pin; ConfigError otherwise."""
    if not is_name(name):
        raise ConfigError(
            f"{what} {name!r} is not a valid name",
            code="TDM-A029",
            remedy="use letters, digits, '.', '_' and '-', starting with a letter or digit, at most 128",
        )
    return name


def is_name(name: str) -> bool:
    """Whether `name` is valid in a key as a pair, instance or pin."""
    return _NAME.fullmatch(name) is not None and ".." not in name


def check_topic(topic: str) -> str:
    """Return `topic` if Kafka allows it as a topic name; DamagedError otherwise (it came from stored bytes)."""
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise DamagedError(f"{topic!r} is not a Kafka topic name", code="TDM-A030")
    return topic


def is_signed(key: str) -> bool:
    """Whether `key` is of a document that is signed where signing is on: all that decisions rest on, no data object."""
    return _SIGNED.fullmatch(key) is not None


def claims_prefix(pair: str) -> str:
    """Return the folder of all claims and chains of a pair."""
    return f"{pair}/generations/"


def claim_key(pair: str, generation: int) -> str:
    """Return the key of the claim of a generation."""
    return f"{pair}/generations/{generation:08d}.json"


def claim_number(name: str) -> int | None:
    """Return the generation that a claim's file name names, None for other names."""
    match = _CLAIM.fullmatch(name)
    return int(match[1]) if match else None


def chain_prefix(pair: str, generation: int) -> str:
    """Return the folder of a generation's chain entries."""
    return f"{pair}/generations/{generation:08d}/"


def entry_key(pair: str, generation: int, seq: int) -> str:
    """Return the key of chain entry `seq`."""
    return f"{pair}/generations/{generation:08d}/{seq:020d}.json"


def pins_prefix(pair: str) -> str:
    """Return the folder of the pins of a pair."""
    return f"{pair}/pins/"


def checkpoint_key(pair: str, checkpoint: str) -> str:
    """Return the key of a named consistent cut."""
    return f"{pair}/checkpoints/{check_name(checkpoint, 'checkpoint')}.json"


def checkpoints_prefix(pair: str) -> str:
    """Return the folder of the named consistent cuts of a pair; their outcomes lie one folder below."""
    return f"{pair}/checkpoints/"


def outcome_key(pair: str, nonce: str) -> str:
    """Return the key of the outcome of the checkpoint request with this nonce."""
    return f"{outcomes_prefix(pair)}{check_name(nonce, 'nonce')}.json"


def outcomes_prefix(pair: str) -> str:
    """Return the folder of the outcomes of checkpoint requests."""
    return f"{pair}/checkpoints/outcomes/"


def releases_prefix(pair: str) -> str:
    """Return the folder of the releases of a pair."""
    return f"{pair}/releases/"


def release_key(pair: str, number: int) -> str:
    """Return the key of a release, by which a person allows records to be deleted."""
    return f"{releases_prefix(pair)}{number:08d}.json"


def pauses_prefix(pair: str) -> str:
    """Return the folder of the pauses of a pair."""
    return f"{pair}/pauses/"


def pause_key(pair: str, number: int) -> str:
    """Return the key of a pause, by which a person asks that no turn begins for a while."""
    return f"{pauses_prefix(pair)}{number:08d}.json"


def restores_prefix(pair: str) -> str:
    """Return the folder of the documents of restores."""
    return f"{pair}/restores/"


def restore_targets_prefix(pair: str) -> str:
    """Return the folder that names the topics which restores created."""
    return f"{restores_prefix(pair)}targets/"


def restore_targets_key(pair: str, plan: str, part: str) -> str:
    """Return the key of topics of a plan's hash; `part` is random for an announcement, else a hash of their ids."""
    return f"{restore_targets_prefix(pair)}{check_name(f'{plan[:16]}-{part}', 'plan')}.json"


def restore_prefix(pair: str, restore: str) -> str:
    """Return the folder of one restore's documents: its report and its offset map."""
    return f"{restores_prefix(pair)}{check_name(restore, 'restore')}/"


def results_prefix(pair: str) -> str:
    """Return the folder of the results of verifications, drills and sweeps."""
    return f"{pair}/results/"


def result_prefix(pair: str, kind: str) -> str:
    """Return the prefix of the keys of the results of runs of one kind."""
    return f"{results_prefix(pair)}{kind}-"


@lru_cache(64)
def data_prefix(pair: str, instance: str, generation: int) -> str:
    """Return the folder of everything that a generation stores besides its chain. Each of its objects is held to it."""
    return f"{pair}/{instance}/generation={generation:08d}/"


def place_of(key: str) -> tuple[str, int]:
    """Return pair and generation of a key below a `data_prefix`; DamagedError for other keys."""
    match = _DATA.match(key)
    if match is None:
        raise DamagedError(f"{key} lies in no generation", code="TDM-A031")
    return match[1], int(match[2])


def data_key(where: GenerationPlace, *, topic: str, partition: int, first: int, last: int, nonce: str) -> str:
    """Return the key of one partition's data object; offsets have 20 digits, the nonce is one of `marked`."""
    folder = f"{data_prefix(*where)}topics/{check_topic(topic)}/partition={partition}/"
    return f"{folder}{name_of_topic(topic)}+{partition}+{first:020d}+{last:020d}+{nonce}.avro"


def name_of_topic(topic: str) -> str:
    """Return the prefix of the names of a topic's data objects: the topic; if too long, a part of it and a hash.

    The folder of such an object has the whole name. The `~` is in no topic's name. Objects of older releases have
    the whole topic in both places, however long it is.
    """
    longest = _NAME_BYTES - _NAME_REST
    if len(topic) <= longest:
        return topic
    digits = hashlib.sha256(topic.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{topic[: longest - 1 - _HASH_DIGITS]}~{digits}"


def mark_of(incarnation: str) -> str:
    """Return the mark of an incarnation, seven hex digits. If two share one, an orphan is kept longer."""
    return hashlib.sha256(incarnation.encode()).hexdigest()[:7]


def marked(drawn: str, mark: str) -> str:
    """Return a nonce of the mark, whose incarnation alone may commit the object, and eight hex digits of `drawn`."""
    return f"{mark}-{drawn[:8]}"


def mark_in(key: str) -> str | None:
    """Return the mark in the name of a data object, None if it has none: a janitor's, or one of an older release."""
    match = _MARKED.search(key)
    return None if match is None else match[1]


def swept_key(where: GenerationPlace, *, topic: str, partition: int, first: int, last: int, nonce: str) -> str:
    """Return the key of an object that a janitor writes; no instance uploads objects with such a name."""
    return data_key(where, topic=topic, partition=partition, first=first, last=last, nonce=f"{_SWEPT}{nonce}")


def swept_journal_key(pair: str, instance: str, generation: int, *, seq: int, nonce: str) -> str:
    """Return the key of a journal that a janitor writes in the place of the one with this number."""
    return journal_key(pair, instance, generation, seq=seq, nonce=f"{_SWEPT}{nonce}")


def by_janitor(key: str) -> bool:
    """Whether a data object, or an upload of one, was written by a janitor."""
    return key.rpartition("+")[2].startswith(_SWEPT)


def journal_key(pair: str, instance: str, generation: int, *, seq: int, nonce: str) -> str:
    """Return the key of an object that many small partitions share, written for chain entry `seq` (or a later one)."""
    return f"{data_prefix(pair, instance, generation)}journal/{seq:020d}+{nonce}.avro"


def offers_prefix(pair: str, instance: str, generation: int) -> str:
    """Return the folder of the ranges that a catch-up job has read for a generation."""
    return f"{data_prefix(pair, instance, generation)}offers/"


class OfferedOffsets(NamedTuple):
    """What the name of an offer says: the range [low, high) of the scan of a partition from its leader."""

    topic_id: str
    partition: int
    floor: int
    leader: int
    low: int
    high: int


def offer_name(said: OfferedOffsets, nonce: str) -> str:
    """Return the name, below `offers_prefix`, of the offer for a range."""
    topic_id, partition, floor, leader, low, high = said
    return f"{topic_id}+{partition}+{floor}+{leader}+{low:020d}+{high:020d}+{nonce}.json"


def offer_of(name: str) -> OfferedOffsets | None:
    """Return what a name by `offer_name` says, None for other names."""
    match = _OFFER.fullmatch(name)
    if match is None:
        return None
    topic_id, *numbers = match.groups()
    partition, floor, leader, low, high = (int(number) for number in numbers)
    return OfferedOffsets(topic_id, partition, floor, leader, low, high)


def is_offer(key: str) -> bool:
    """Whether a key lies in a generation's folder of offers, whatever its name there."""
    return _OFFERED.fullmatch(key) is not None


def partition_of(key: str) -> tuple[str, int] | None:
    """Return topic name and partition in the key of one partition's data object, None for other keys."""
    match = _PARTITION.fullmatch(key)
    return None if match is None else (match[1], int(match[2]))


def is_journal(key: str) -> bool:
    """Whether a key is that of a journal."""
    return _JOURNAL.search(key) is not None


def journal_number(key: str) -> int:
    """Return the number in the name of a journal; DamagedError for another key."""
    match = _JOURNAL.search(key)
    if match is None:
        raise DamagedError(f"{key} is not the name of a journal", code="TDM-A032")
    return int(match[1])
