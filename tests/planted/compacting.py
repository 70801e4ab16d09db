"""Mistakes in finding the newest record of each key by a shuffle, and in comparing copies so."""

from __future__ import annotations

from planted.mistakes import Mistake

_BY_KEY = "spark_jobs/tandem/spark_jobs/retention/sweep_by_key.py"
_ROWS = "spark_jobs/tandem/spark_jobs/compaction/keyed_rows.py"
_NEWEST = "spark_jobs/tandem/spark_jobs/restore/records/newest_by_key.py"
_COMPARE = "spark_jobs/tandem/spark_jobs/verify/compare_by_key.py"

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
    Mistake(
        name="keyed comparison: a range that was not read is not missed",
        file=_COMPARE,
        old="    if seen.ranges != shared.ranges_of(place) or buckets != len(shared.buckets.of_place(place)):\n",
        new="    if buckets != len(shared.buckets.of_place(place)):\n",
    ),
    Mistake(
        name="keyed comparison: a bucket that was not compared is not missed",
        file=_COMPARE,
        old="    if not packed:\n        return  # a bucket",
        new="    if False:\n        return  # a bucket",
    ),
    Mistake(
        name="keyed comparison: the flag of a tombstone is lost on the way",
        file=_COMPARE,
        old='        rows["flags"] = np.where(read["tombstone"] != 0, _TOMBSTONE, 0)\n',
        new='        rows["flags"] = 0\n',
    ),
    Mistake(
        name="keyed comparison: of two records the one that was read first wins",
        file=_COMPARE,
        old="    rows = found.rows[oldest_first]\n",
        new="    oldest_first = oldest_first[::-1]\n    rows = found.rows[oldest_first]\n",
    ),
    Mistake(
        name="keyed comparison: a record without a key beyond the cut counts as one with an empty key",
        file=_COMPARE,
        old='    flags = np.where(beyond.rows["flags"] & _KEYLESS == 0, beyond.rows["flags"], 0)',
        new='    flags = beyond.rows["flags"]',
    ),
    Mistake(
        name="keyed comparison: records without a key that one copy lacks are forgotten",
        file=_COMPARE,
        old="    alone = keyless & ((flags & _DIFFERENT != 0) | one_sided & (flags & _TOMBSTONE == 0))\n",
        new="    alone = keyless & (flags & _DIFFERENT != 0)\n",
    ),
    Mistake(
        name="keyed comparison: another key at the same offset is taken for the same",
        file=_COMPARE,
        old="    other |= keyless\n    return other\n",
        new="    return other & keyless\n",
    ),
    Mistake(
        name="keyed comparison: a range that is read again after the end of the log proves something",
        file=_COMPARE,
        old="        behind = seen.behind or seen.head > seen.reach\n",
        new="        behind = seen.behind\n",
    ),
    Mistake(
        name="keyed comparison: what a log has beyond the cut is read with what is below it",
        file=_COMPARE,
        old="partitions=shared.buckets.count + len(beyond), work=join",
        new="partitions=shared.buckets.count, work=join",
    ),
    Mistake(
        name="comparison: another key at the same offset hides an older record of it",
        file="spark_jobs/tandem/spark_jobs/verify/compare_plan.py",
        old="            own.pop(left.key, None)\n",
        new="            own.pop(left.key, None)\n            own.pop(right.key, None)\n",
    ),
    Mistake(
        name="newest by a shuffle: a range that was not read is not missed",
        file=_NEWEST,
        old="    if missing or buckets:\n",
        new="    if buckets:\n",
    ),
    Mistake(
        name="newest by a shuffle: the older of two records wins",
        file=_NEWEST,
        old="    oldest_first = np.argsort(offsets)\n",
        new="    oldest_first = np.argsort(-offsets)\n",
    ),
    Mistake(
        name="newest by a shuffle: records beyond the moment that is restored count",
        file=_NEWEST,
        old="            ended = min(ended, message.offset)\n",
        new="            ended = LONG_MAX\n",
    ),
    Mistake(
        name="newest by a shuffle: records that a restore leaves out supersede others",
        file=_NEWEST,
        old="        plain = not replace(shape, latest=False, tombstones=True).selects\n",
        new="        plain = True\n",
    ),
    Mistake(
        name="newest by a shuffle: an offset has the bit of its neighbour",
        file="spark_jobs/tandem/spark_jobs/restore/records/newest_records.py",
        old="            return bool(self._bits[at][place >> 3] >> (place & 7) & 1)\n",
        new="            return bool(self._bits[at][place >> 3] >> (~place & 7) & 1)\n",
    ),
)
