"""What somebody can do who writes to the bucket, reads all of it, and has no signing key. One forgery at a time.

He knows the formats: what he changes he encodes, packs and links anew, up to the head. His documents carry no
signature, the one of the document that they replace, or one that he made with a key of his own. Backups of odd seeds
are encrypted, and he has that key: what he changes opens as if it had been sealed there.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.backups.build_backup import PAIR

from damage.scene import Scene, build
from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import StoredObject, sha256_hex
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.chain.json_codec import canonical, load_object, pack, unpack
from tandem.backup_avro.chain.signatures import Signer, unseal
from tandem.backup_avro.record import chunk_cipher
from tandem.sink.encryption.encryption_settings import UNENCRYPTED, KeySettings
from tandem.sink.encryption.key_ring import KeyRing
from tandem.sink.store import StoreAccess
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.encrypted_objects import part_hashes

OTHER = "other"
_GENERATIONS = (1, 2, 3)
#: Below the root, and no pair of it: the same pair in another bucket, signed with the same key.
_ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A signed backup, another pair beside it, one of the same name in another bucket; the heads that are known."""

    scene: Scene
    folder: Path
    elsewhere: Path
    heads: tuple[Head, ...]
    stranger: Signer

    def chain(self, number: int, *, pair: str = PAIR, root: Path | None = None) -> list[Path]:
        """Return claim and entries of a generation, in order."""
        root = root or self.folder
        claim = root / layout.claim_key(pair, number)
        return [claim, *sorted((root / layout.chain_prefix(pair, number)).glob("*.json"))]

    def key(self, path: Path) -> str:
        """Return the key of a file of the bucket."""
        return str(path.relative_to(self.folder))


def build_stage(folder: Path, seed: int) -> Stage:
    """Make it: two pairs and two buckets, all signed with one key."""
    (folder / "key.pem").write_bytes((signer := Signer.generate()).pem())
    (folder / "data.key").write_text(random.Random(seed).randbytes(32).hex())
    settings = StoreAccess(
        signing_key_file=str(folder / "key.pem"),
        trusted_keys=signer.public,
        require_signatures=True,
        encryption=KeySettings(key_file=str(folder / "data.key"), require=True) if seed % 2 else UNENCRYPTED,
    )
    bucket, elsewhere = folder / "bucket", folder / _ELSEWHERE
    bucket.mkdir()
    elsewhere.mkdir()
    scene = build(bucket, seed, settings)
    build(bucket, seed + 1, settings, pair=OTHER)
    build(elsewhere, seed + 2, settings)
    heads = tuple(Head.of(state) for state in ChainReader(scene.store, PAIR).refresh())
    return Stage(scene=scene, folder=bucket, elsewhere=elsewhere, heads=heads, stranger=Signer.generate())


@dataclass(slots=True, kw_only=True)
class Forgery:
    """What was done, and how to undo it: `before` holds the files as they were, None for those that were not there.

    `by_head`: what is left may be right in itself, so only a head that is known tells. `document`: of no chain.
    """

    kind: str
    what: str
    by_head: bool
    document: bool = False
    before: dict[Path, bytes | None] = field(default_factory=dict)

    def undo(self) -> None:
        for path, data in self.before.items():
            if data is None:
                path.unlink(missing_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)


_Changes = dict[Path, bytes | None]


def forge(rng: random.Random, stage: Stage) -> Forgery:
    """Forge something, in one of the ways."""
    while True:
        kind, way = rng.choice(_WAYS)
        by_head = way in {_roll_back, _replay_bucket}
        changes = way(rng, stage)
        before = {path: path.read_bytes() if path.exists() else None for path in changes}
        if all(before[path] == data for path, data in changes.items()):
            continue
        for path, data in changes.items():
            if data is None:
                path.unlink(missing_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        what = ", ".join(map(stage.key, list(changes)[:3]))
        return Forgery(kind=kind, by_head=by_head, document=way is _forge_document, what=what, before=before)


# --- documents ---


def _document(data: bytes) -> dict[str, Any]:
    body, _ = unseal(data)
    found: dict[str, Any] = json.loads(unpack(body, "forged"))
    return found


def _body(document: dict[str, Any], *, claim: bool) -> bytes:
    plain = canonical(document)
    return plain if claim else pack(plain)


def _seal(rng: random.Random, stage: Stage, path: Path, body: bytes, old: bytes | None) -> bytes:
    """Sign as well as one can without the key: not at all, with what is there, or with one's own."""
    match rng.randrange(3):
        case 0:
            return body
        case 1 if old is not None and (token := unseal(old)[1]) is not None and body[:1] == b"{":
            return b'{"_sig":"' + token + b'",' + body[1:]
        case _:
            return stage.stranger.seal(stage.key(path), body)


def _link(
    rng: random.Random, stage: Stage, paths: list[Path], first: int, documents: Iterator[dict[str, Any]]
) -> _Changes:
    """Write `documents` from place `first` of a chain on, each with the right number and link."""
    sha256 = sha256_hex(unseal(paths[first - 1].read_bytes())[0])
    changes: _Changes = {}
    for seq, document in enumerate(documents, start=first):
        path = paths[seq] if seq < len(paths) else paths[1].parent / f"{seq:020d}.json"
        body = _body(document | {"seq": seq, "prev_sha256": sha256}, claim=False)
        changes[path] = _seal(rng, stage, path, body, path.read_bytes() if path.exists() else None)
        sha256 = sha256_hex(body)
    return changes


# --- the ways ---


def _swap(rng: random.Random, stage: Stage) -> _Changes:
    """Two claims, entries or data objects change places."""
    files = stage.scene.files(rng.choice(("objects", "entries", "claims")))
    mine = [path for path in files if path.is_relative_to(stage.folder / PAIR)]
    one, other = rng.sample(mine, 2)
    return {one: other.read_bytes(), other: one.read_bytes()}


def _splice(rng: random.Random, stage: Stage) -> _Changes:
    """The end of one chain goes on another one, linked anew or as it is."""
    one, other = rng.sample(_GENERATIONS, 2)
    paths, source = stage.chain(one), stage.chain(other)
    cut = rng.randrange(1, min(len(paths), len(source)))
    rest: _Changes = dict.fromkeys(paths[cut:], None)
    if rng.random() < 0.5:
        return rest | {paths[1].parent / path.name: path.read_bytes() for path in source[cut:]}
    holder = _document(paths[cut - 1].read_bytes())["incarnation"]
    documents = (_document(path.read_bytes()) | {"incarnation": holder} for path in source[cut:])
    return rest | _link(rng, stage, paths, cut, documents)


def _replay_pair(rng: random.Random, stage: Stage) -> _Changes:
    """Another pair's claim, entry, data object or whole chain, which the same key has signed."""
    number = rng.choice(_GENERATIONS)
    if rng.random() < 0.3:
        paths, source = stage.chain(number), stage.chain(rng.choice(_GENERATIONS), pair=OTHER)
        found: _Changes = dict.fromkeys(paths, None)
        found[paths[0]] = source[0].read_bytes()
        return found | {paths[1].parent / path.name: path.read_bytes() for path in source[1:]}
    if rng.random() < 0.3:
        objects = [path for path in stage.scene.files("objects") if path.is_relative_to(stage.folder / PAIR)]
        foreign = sorted((stage.folder / OTHER).glob("[ab]/**/*.avro"))
        return {rng.choice(objects): rng.choice(foreign).read_bytes()}
    at = rng.randrange(min(len(stage.chain(number)), len(stage.chain(number, pair=OTHER))))
    return {stage.chain(number)[at]: stage.chain(number, pair=OTHER)[at].read_bytes()}


def _replay_bucket(rng: random.Random, stage: Stage) -> _Changes:
    """The pair of the same name in another bucket: its signatures are right. One entry, or a generation as a whole."""
    number = rng.choice(_GENERATIONS)
    paths, source = stage.chain(number), stage.chain(number, root=stage.elsewhere)
    if rng.random() < 0.5:
        at = rng.randrange(min(len(paths), len(source)))
        return {paths[at]: source[at].read_bytes()}
    changes: _Changes = dict.fromkeys(paths, None)
    objects = sorted(stage.elsewhere.glob(f"{PAIR}/[ab]/generation={number:08d}/**/*.avro"))
    for path in [*source, *objects]:
        changes[stage.folder / path.relative_to(stage.elsewhere)] = path.read_bytes()
    return changes


def _edit(rng: random.Random, stage: Stage) -> _Changes:
    """An entry says something else, and all later ones are linked to that. Or the claim does."""
    paths = stage.chain(rng.choice(_GENERATIONS))
    at = rng.randrange(len(paths))
    documents = [_document(path.read_bytes()) for path in paths[at:]]
    changes = _alter(rng, stage, documents[0])
    if at:
        return changes | _link(rng, stage, paths, at, iter(documents))
    old = paths[0].read_bytes()
    body = _body(documents[0], claim=True)
    changes[paths[0]] = _seal(rng, stage, paths[0], body, old)
    sha256 = sha256_hex(body)
    for path, document in zip(paths[1:], documents[1:], strict=True):
        body = _body(document | {"prev_sha256": sha256}, claim=False)
        changes[path] = _seal(rng, stage, path, body, path.read_bytes())
        sha256 = sha256_hex(body)
    return changes


def _alter(rng: random.Random, stage: Stage, document: dict[str, Any]) -> _Changes:
    """Change a document in place; return what of the data changes with it."""
    objects = document.get("objects", [])
    if objects and rng.random() < 0.7:  # other records, and all hashes fit
        item = rng.choice(objects)
        path = stage.folder / item["key"]
        if path.exists():
            old = load_object(item, "forged")
            data = _other_records(rng, stage, old)
            item["sha256"] = sha256_hex(data)
            if old.separable:
                for part, sha256 in zip(item["parts"], part_hashes(old, old.parts, data), strict=True):
                    part["sha256"] = sha256
            return {path: bytes(data)}
    if document.get("positions"):
        by_number = rng.choice(list(document["positions"].values()))
        rng.choice(list(by_number.values()))["offset"] += rng.randint(1, 1000)
    elif "incarnation" in document:
        document["reason"] = f"forged {rng.random()}"
    return {}


def _other_records(rng: random.Random, stage: Stage, item: StoredObject) -> bytearray:
    """Return an object in which one bit of the records is another one; if it is encrypted, sealed with its own key."""
    stored = (stage.folder / item.key).read_bytes()
    if item.envelope is None:
        data = bytearray(stored)
    else:
        data_key = KeyRing(stage.scene.settings.encryption).data_key(item.key, item.envelope)
        data = chunk_cipher.open_whole(item.envelope, data_key, stored, name=item.key)
    data[rng.randrange(item.parts[0].start, len(data))] ^= 1 << rng.randrange(8)
    return data if item.envelope is None else chunk_cipher.seal(item.envelope, data_key, data, name=item.key)


def _seal_anew(rng: random.Random, stage: Stage) -> _Changes:
    """The records of a data object are others, and no document says so: who has its data key seals what he likes."""
    states = ChainReader(stage.scene.store, PAIR).refresh()
    objects = [item for state in states for item in state.objects.values() if (stage.folder / item.key).exists()]
    item = rng.choice([item for item in objects if item.journal] if rng.random() < 0.5 else objects)
    return {stage.folder / item.key: bytes(_other_records(rng, stage, item))}


def _append(rng: random.Random, stage: Stage) -> _Changes:
    """A forged entry after the head: COMPLETE of what is not complete, a taint, a seal, a clearing."""
    paths = stage.chain(rng.choice(_GENERATIONS))
    head = _document(paths[-1].read_bytes())
    kind = rng.choice(("COMPLETE", "CONFIRM", "SEALED", "TAKEOVER", "CLEARING"))
    document: dict[str, Any] = {
        "v": 1, "enc": None, "kind": kind, "incarnation": head["incarnation"], "at": head["at"],
        "snapshot": head["snapshot"], "reason": "forged",
    }  # fmt: skip
    if kind == "CONFIRM":
        document["head_at"] = rng.randrange(1 << 41)
    if kind == "CLEARING":
        document["clearing"] = {"goes": [], "stays": {}}
    return _link(rng, stage, paths, len(paths), iter([document]))


def _roll_back(rng: random.Random, stage: Stage) -> _Changes:
    """The newest entries of a chain are gone, or whole generations, down to below a head that is known."""
    if rng.random() < 0.25:
        first = rng.choice(_GENERATIONS[1:])
        return {path: None for number in _GENERATIONS if number >= first for path in stage.chain(number)}
    paths = stage.chain(rng.choice(_GENERATIONS))
    return dict.fromkeys(paths[rng.randrange(1, len(paths)) :], None)


def _strip(rng: random.Random, stage: Stage) -> _Changes:
    """Signatures are taken off: of one document, of a chain, of all."""
    numbers = rng.choice(([rng.choice(_GENERATIONS)], list(_GENERATIONS)))
    paths = [path for number in numbers for path in stage.chain(number)]
    paths = rng.sample(paths, 1) if rng.random() < 0.5 else paths
    return {path: unseal(path.read_bytes())[0] for path in paths}


def _sign_anew(rng: random.Random, stage: Stage) -> _Changes:
    """All of a chain is signed with a key that nobody trusts."""
    paths = stage.chain(rng.choice(_GENERATIONS))
    paths = rng.sample(paths, rng.randint(1, len(paths)))
    return {path: stage.stranger.seal(stage.key(path), unseal(path.read_bytes())[0]) for path in paths}


def _forge_document(rng: random.Random, stage: Stage) -> _Changes:
    """A signed document that no chain speaks of: another one's, another pair's, edited, or without its signature."""
    files = [path for path in stage.scene.files("documents") if layout.is_signed(stage.key(path))]
    path = rng.choice(files)
    data = path.read_bytes()
    match rng.randrange(4):
        case 0:
            return {path: rng.choice(files).read_bytes()}
        case 1:
            return {path: (stage.folder / OTHER / path.relative_to(stage.folder / PAIR)).read_bytes()}
        case 2:
            return {path: unseal(data)[0]}
        case _:
            document = _document(data)
            name = rng.choice(
                [name for name, value in document.items() if isinstance(value, str | int) and name != "v"]
            )
            document[name] += 1 if isinstance(document[name], int) else "0"
            return {path: _seal(rng, stage, path, _body(document, claim=False), data)}


_WAYS: tuple[tuple[str, Callable[[random.Random, Stage], _Changes]], ...] = (
    ("two swapped", _swap),
    ("chains spliced", _splice),
    ("another pair's replayed", _replay_pair),
    ("another bucket's replayed", _replay_bucket),
    ("edited, and linked anew", _edit),
    ("other records, sealed anew", _seal_anew),
    ("an entry appended", _append),
    ("rolled back below a known head", _roll_back),
    ("signatures stripped", _strip),
    ("signed with a foreign key", _sign_anew),
    ("a small document forged", _forge_document),
)
