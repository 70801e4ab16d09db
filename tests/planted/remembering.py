"""Mistakes in what a machine remembers of the chains that it has read."""

from __future__ import annotations

from planted.mistakes import Mistake

_HEADS = "controller/tandem/controller/local_state/remembered_heads.py"
_FILE = "controller/tandem/controller/local_state/state_file.py"

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="heads: a chain that has gone on since it was set back is not compared",
        file=_HEADS,
        old=" and _lacks(reader, seen.head)",
        new=" and number not in live and _lacks(reader, seen.head)",
    ),
    Mistake(
        name="heads: a lost one is replaced by the present one",
        file=_HEADS,
        old="            if replaces and number not in self.lost:\n",
        new="            if replaces:\n",
    ),
    Mistake(
        name="heads: a lost generation is forgotten like an ended one",
        file=_HEADS,
        old="        for number in self.ended - self.lost:\n",
        new="        for number in self.ended:\n",
    ),
    Mistake(
        name="heads: what another process has stored meanwhile is replaced unseen",
        file=_HEADS,
        old="(before.head != head and before == checked.heads.get(number))",
        new="before.head != head",
    ),
    Mistake(
        name="heads: ended generations are kept for ever",
        file=_HEADS,
        old="                heads.pop(number, None)\n",
        new="                pass\n",
    ),
    Mistake(
        name="heads: two buckets of one name are one",
        file=_HEADS,
        old="next((place for place in self._places if place.origin == origin)",
        new="next((place for place in self._places)",
    ),
    Mistake(
        name="heads: an instance forgets a loss at its next look",
        file="controller/tandem/controller/watch/store_watch.py",
        old="recalled.compare(self._reader, states) or self._remembered_losses\n",
        new="recalled.compare(self._reader, states)\n",
    ),
    Mistake(
        name="heads: others may read the file",
        file=_FILE,
        old="mode=0o600, force=True",
        new="mode=0o644, force=True",
    ),
    Mistake(
        name="heads: two processes write the file at once",
        file=_FILE,
        old="fcntl.LOCK_EX | fcntl.LOCK_NB",
        new="fcntl.LOCK_SH | fcntl.LOCK_NB",
    ),
    Mistake(
        name="heads: a file of another user is believed",
        file=_FILE,
        old=" or found.st_uid != os.geteuid():\n                    raise",
        new=":\n                    raise",
    ),
)
