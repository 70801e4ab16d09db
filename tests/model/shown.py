"""States for people: the lines of a history."""

from __future__ import annotations

from .packed import Gen, Part, Shape
from .world import ALIVE, World


class Shown:
    """Words for the partitions of one model."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._width = len(shape.keys)

    def world(self, world: World) -> str:
        """Logs and chains on one line."""
        logs = " ".join(f"{self.name(n)}={end if world.life[n] == ALIVE else '-'}" for n, end in enumerate(world.ends))
        chains = " ".join(f"[{self._show(n, gen, world)}]" for n, gen in enumerate(world.gens) if gen is not None)
        return f"{logs} | {chains} | confirmed {','.join(map(str, world.confirmed))}"

    def _show(self, number: int, gen: Gen, world: World) -> str:
        words = [f"{number + 1}{gen.holder or gen.claimer}"]
        words.append(self.positions(gen.parts))
        words += [word for word, so in (("COMPLETE", gen.complete), ("SEALED", gen.sealed)) if so]
        if gen.clearing >= 0:
            words.append(f"CLEARING {self.names(gen.clearing)}")
        if gen.cleared >= 0:
            words.append(f"CLEARED {self.names(gen.cleared)}")
        lost = [self.name(n) for n, bits in enumerate(world.deleted[number]) if bits]
        if lost:
            words.append(f"lost {'+'.join(lost)}")
        if gen.damaged:
            words.append("DAMAGED")
        return " ".join(words)

    def positions(self, parts: tuple[Part | None, ...]) -> str:
        """Return offsets with ~ while the base is read, . when it is done, ! when at head after that.

        `t` and a number is a taint, x a topic that is marked as gone.
        """
        return ",".join("-" if part is None else _position(part) for part in parts)

    def name(self, n: int) -> str:
        """Return a partition's name."""
        key = self._shape.keys[n]
        return f"{key.topic_id}-{key.partition}"

    def names(self, mask: int) -> str:
        """Return the names of a set of partitions."""
        return "+".join(self.name(n) for n in range(self._width) if mask >> n & 1) or "nothing"


def _position(part: Part) -> str:
    taint = "" if part.taint < 0 else f"t{part.taint}"
    return f"{part.offset}{'~.!'[part.stage]}{taint}{'x' if part.removed else ''}"
