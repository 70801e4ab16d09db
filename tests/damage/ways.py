"""Ways to damage a stored backup, each at one random place. Each changes at least one byte, or takes a file away."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from damage.scene import Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What was done: `before` holds the files as they were. `end`: the newest entry of a chain, or claim, is gone.

    `document`: it is of small documents; `gone`: of one that was deleted.
    """

    kind: str
    before: dict[Path, bytes]
    end: bool = False
    document: bool = False
    gone: bool = False

    def undo(self) -> None:
        for path, data in self.before.items():
            path.write_bytes(data)


def damage(rng: random.Random, scene: Scene, only: str = "") -> Damage:
    """Damage one or two files in one of the ways, of those whose kind has a match of the expression `only`."""
    while True:
        what = rng.choice(_SHARES)
        name, way = rng.choice(_WAYS)
        kind = f"{what}: {name}"
        if re.search(only, kind) is None:
            continue
        files = scene.files(what)
        changes = way(rng, files)
        before = {path: path.read_bytes() for path in changes}
        if all(before[path] == data for path, data in changes.items()):
            continue
        end = gone = False
        for path, data in changes.items():
            if data is None:
                end = what in {"entries", "claims"} and path == max(path.parent.glob("*.json"))
                gone = what == "documents"
                path.unlink()
            else:
                path.write_bytes(data)
        return Damage(kind=kind, before=before, end=end, document=what == "documents", gone=gone)


def kinds() -> list[str]:
    """Return all kinds of damage."""
    return sorted({f"{what}: {name}" for what in _SHARES for name, _ in _WAYS})


_Changes = dict[Path, bytes | None]


def _flip(rng: random.Random, files: list[Path]) -> _Changes:
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return {path: bytes(data)}


def _overwrite(rng: random.Random, files: list[Path]) -> _Changes:
    path = rng.choice(files)
    data = path.read_bytes()
    at = rng.randrange(len(data))
    piece = rng.choice((bytes(rng.randint(1, 64)), rng.randbytes(rng.randint(1, 64))))
    return {path: (data[:at] + piece)[: len(data)] + data[at + len(piece) :]}


def _digit(rng: random.Random, files: list[Path]) -> _Changes:
    """Another digit: what stays well-formed."""
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    places = [at for at, byte in enumerate(data) if 0x30 <= byte <= 0x39]
    if places:
        data[rng.choice(places)] = rng.choice(b"0123456789")
    return {path: bytes(data)}


def _truncate(rng: random.Random, files: list[Path]) -> _Changes:
    path = rng.choice(files)
    data = path.read_bytes()
    return {path: data[: rng.choice((0, len(data) - 1, rng.randrange(len(data))))]}


def _append(rng: random.Random, files: list[Path]) -> _Changes:
    path = rng.choice(files)
    more = rng.choice((b"\n", b" ", b"\0", b"}", rng.randbytes(rng.randint(1, 40)), rng.choice(files).read_bytes()))
    return {path: path.read_bytes() + more}


def _insert(rng: random.Random, files: list[Path]) -> _Changes:
    path = rng.choice(files)
    data = path.read_bytes()
    at = rng.randrange(len(data))
    return {path: data[:at] + rng.randbytes(rng.randint(1, 9)) + data[at:]}


def _cut_out(rng: random.Random, files: list[Path]) -> _Changes:
    path = rng.choice(files)
    data = path.read_bytes()
    at = rng.randrange(len(data))
    return {path: data[:at] + data[at + rng.randint(1, 64) :]}


def _swap_pieces(rng: random.Random, files: list[Path]) -> _Changes:
    """Two pieces of one length change places: blocks, parts, or what lies across them."""
    path = rng.choice(files)
    data = path.read_bytes()
    size = rng.randint(1, max(1, len(data) // 2))
    low = rng.randrange(len(data) - 2 * size + 1) if len(data) > 2 * size else 0
    high = rng.randint(low + size, max(low + size, len(data) - size))
    one, other = data[low : low + size], data[high : high + size]
    return {path: data[:low] + other + data[low + size : high] + one + data[high + size :]}


def _swap(rng: random.Random, files: list[Path]) -> _Changes:
    one, other = rng.sample(files, 2)
    return {one: other.read_bytes(), other: one.read_bytes()}


def _copy(rng: random.Random, files: list[Path]) -> _Changes:
    """One takes the place of another."""
    one, other = rng.sample(files, 2)
    return {one: other.read_bytes()}


def _delete(rng: random.Random, files: list[Path]) -> _Changes:
    return {rng.choice(files): None}


_SHARES = ("objects",) * 3 + ("entries",) * 3 + ("claims",) + ("documents",) * 2
_WAYS: tuple[tuple[str, Callable[[random.Random, list[Path]], _Changes]], ...] = (
    ("bits flipped", _flip),
    ("bits flipped", _flip),
    ("bytes overwritten", _overwrite),
    ("a digit changed", _digit),
    ("cut short", _truncate),
    ("bytes appended", _append),
    ("bytes inserted", _insert),
    ("bytes cut out", _cut_out),
    ("pieces swapped", _swap_pieces),
    ("two swapped", _swap),
    ("one in place of another", _copy),
    ("deleted", _delete),
)
