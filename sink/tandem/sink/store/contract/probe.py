"""The part of `ObjectStore.probe` that all stores share: checks put-if-absent, on which Tandem's safety rests."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tandem.backup_avro.chain.layout import PROBES
from tandem.sink.store.contract.object_store import ObjectStore, PutResult, StoreTransientError, StoreUnfitError

_RACERS = 6
LARGEST_PROBE = 1000
"""Most bytes that a probe reads back: all bodies of a probe are shorter."""
_REMEDY = (
    "use a store that honours If-None-Match: * on PutObject, such as AWS S3, or update this one; "
    "without it two writers could overwrite each other; docs/connections.md"
)


def probe_key(prefix: str) -> str:
    """Return a new name for a probe object; random, so that no two probes meet."""
    folder = prefix if not prefix or prefix.endswith("/") else prefix + "/"
    return f"{folder}{PROBES}{secrets.token_hex(8)}"


def probe_put_if_absent(store: ObjectStore, key: str, body: bytes) -> None:
    """Create `key` with `body`, and check that no put replaces it: of the same bytes, other bytes, other threads.

    Leaves objects at `key` and `key` + "-race" for the caller to remove. A race can't prove that a store is atomic,
    it can only catch one that is not; servers that check first and write later have failed it in practice.
    Raises StoreUnfitError.
    """
    # EXISTS is possible here: the answer to our own first attempt was lost.
    store.put_if_absent(key, body)
    if store.get(key, most=LARGEST_PROBE) != body:
        raise StoreUnfitError(
            f"{store.url}: an object just written to {key!r} reads back differently", code="TDM-S055", remedy=_REMEDY
        )
    for again in (body, body[::-1] + b"other"):
        if store.put_if_absent(key, again) is not PutResult.EXISTS:
            raise StoreUnfitError(
                f"{store.url}: put-if-absent replaced the existing object {key!r}", code="TDM-S056", remedy=_REMEDY
            )
    if store.get(key, most=LARGEST_PROBE) != body:
        raise StoreUnfitError(
            f"{store.url}: put-if-absent changed the existing object {key!r}", code="TDM-S057", remedy=_REMEDY
        )
    if [info.key for info in store.list(key)] != [key]:
        raise StoreUnfitError(
            f"{store.url}: an object just written to {key!r} is not in the listing",
            code="TDM-S058",
            remedy="use a store whose listings are strongly consistent",
        )
    race = key + "-race"
    winners = race_for(lambda body: store.put_if_absent(race, body))
    if len(winners) > 1 or (winners and store.get(race, most=LARGEST_PROBE) != winners[0]):
        raise StoreUnfitError(
            f"{store.url}: of {_RACERS} writers at once {len(winners)} were told that they created {race!r}",
            code="TDM-S059",
            remedy=_REMEDY,
        )


def race_for(put: Callable[[bytes], PutResult]) -> list[bytes]:
    """Call `put` with different bodies from several threads at once; return those answered with CREATED."""
    bodies = [f"{number}".encode() for number in range(_RACERS)]

    def run(body: bytes) -> PutResult | None:
        try:
            return put(body)
        except StoreTransientError:
            return None  # a conflict that did not end; the outcome is unknown, so it proves nothing

    with ThreadPoolExecutor(_RACERS) as pool:
        outcomes = list(pool.map(run, bodies))
    return [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome is PutResult.CREATED]
