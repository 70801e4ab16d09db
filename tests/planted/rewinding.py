"""Mistakes in bringing keys of a live topic back to a moment's values."""

from __future__ import annotations

from planted.mistakes import Mistake

_CHANGES = "spark_jobs/tandem/spark_jobs/rewind/key_changes.py"
_WRITE = "spark_jobs/tandem/spark_jobs/restore/live_write/guarded_writer.py"
_LOG = "spark_jobs/tandem/spark_jobs/restore/live_write/watched_log.py"

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="rewind: a key written meanwhile is overwritten",
        file=_WRITE,
        old="        rest = self._without(meanwhile, records)\n",
        new="        rest = records\n",
    ),
    Mistake(
        name="rewind: a created key is not removed",
        file=_CHANGES,
        old="    return KeyChange(ChangeKind.CREATED, key, old, live) if there else None\n",
        new="    return KeyChange(ChangeKind.CREATED, key, old, live) if there and old is not None else None\n",
    ),
    Mistake(
        name="rewind: a good newer write is undone",
        file=_CHANGES,
        old="            and (self.until is None or live.offset < self.until.get(partition, 0))\n",
        new="",
    ),
    Mistake(
        name="live write: own records of a transaction count as those of others",
        file=_WRITE,
        old="        self.own += ranges\n",
        new="",
    ),
    Mistake(
        name="live write: own records that were aborted count as those of others",
        file=_WRITE,
        old="            transaction.commit()\n            self.written += len(records)\n",
        new="            transaction.commit()\n            self.written += len(records)\n"
        "        else:\n            del self.own[-len(ranges) :]\n",
    ),
    Mistake(
        name="live write: an aborted record counts as a write",
        file=_LOG,
        old="        self.open_end.jump_to(self.stable.at)\n",
        new="",
    ),
    Mistake(
        name="rewind: offsets are not noted before they are committed",
        file=_WRITE,
        old="            self.note(ranges)\n        self.own += ranges\n",
        new="            pass\n        self.own += ranges\n",
    ),
    Mistake(
        name="rewind: what was written back already counts as a difference",
        file=_CHANGES,
        old="        return None if old.content == live.content else KeyChange(ChangeKind.CHANGED, key, old, live)\n",
        new="        return None if old == live else KeyChange(ChangeKind.CHANGED, key, old, live)\n",
    ),
)
