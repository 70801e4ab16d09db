"""Mistakes in finding the newest record of each key by a shuffle."""

from __future__ import annotations

from planted.mistakes import Mistake

_BY_KEY = "spark_jobs/tandem/spark_jobs/retention/sweep_by_key.py"
_ROWS = "spark_jobs/tandem/spark_jobs/compaction/keyed_rows.py"

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="keyed pass: a range that was not read is not missed",
        file=_BY_KEY,
        old='raise DamagedError(f"{name} was not read", code="TDM-T009", remedy="run again, and report it")\n',
        new="self.counts[index] = [self.task.pieces[index].part.records]\n                self.sizes[index] = 1\n",
    ),
    Mistake(
        name="keyed pass: the flag of a tombstone is lost on the way",
        file=_BY_KEY,
        old='    tombstone = rows["flags"] & _TOMBSTONE != 0\n',
        new='    tombstone = rows["flags"] > _TOMBSTONE\n',
    ),
    Mistake(
        name="keyed pass: the older of two records wins",
        file=_BY_KEY,
        old='oldest_first = mine[np.argsort(found.rows["at"][mine])]\n',
        new='oldest_first = mine[np.argsort(found.rows["at"][mine])][::-1]\n',
    ),
    Mistake(
        name="keyed pass: records without a key are one key",
        file="sink/tandem/sink/transcode/plain_bodies.py",
        old="if span[5] >= 0 and span[2] < below:\n",
        new="if span[2] < below:\n",
    ),
    Mistake(
        name="keyed pass: equal hashes are taken for equal keys",
        file=_ROWS,
        old="        return np.frombuffer(self._compared(found, numbers).newest, np.uint32)\n",
        new="        hashes = np.frombuffer(self._compared(found, numbers).hashes, np.uint64)[::-1]\n"
        "        _, last, same = np.unique(hashes, return_index=True, return_inverse=True)\n"
        "        return (len(hashes) - 1 - last)[same[::-1]]\n",
    ),
    Mistake(
        name="keyed pass: keys that are held on to the next block of an object are forgotten",
        file=_BY_KEY,
        old="                held, keys, size = [newest], len(newest.rows), len(newest.keys)\n",
        new="                held, keys, size = [], len(newest.rows), len(newest.keys)\n",
    ),
    Mistake(
        name="keyed pass: keys are written to disks in the clear",
        file="spark_jobs/tandem/spark_jobs/spark/shuffle.py",
        old="        require_encrypted_disks(dict(context.getConf().getAll()))\n",
        new="",
    ),
)
