"""Mistakes in finding the newest record of each key by a shuffle."""

from __future__ import annotations

from planted.mistakes import Mistake

_BY_KEY = "spark_jobs/tandem/spark_jobs/retention/sweep_by_key.py"

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="keyed pass: a range that was not read is not missed",
        file=_BY_KEY,
        old="    if not read:\n        yield back, failed\n        return\n",
        new="",
    ),
    Mistake(
        name="keyed pass: the flag of a tombstone is lost on the way",
        file=_BY_KEY,
        old="            if flag & _TOMBSTONE:\n",
        new="            if flag == _TOMBSTONE | _OLDER:\n",
    ),
    Mistake(
        name="keyed pass: the older of two records wins",
        file=_BY_KEY,
        old='np.argsort(rows["at"][mine])][::-1]\n',
        new='np.argsort(rows["at"][mine])]\n',
    ),
    Mistake(
        name="keyed pass: records without a key are one key",
        file=_BY_KEY,
        old="if offset >= task.horizon or span[5] < 0:\n",
        new="if offset >= task.horizon:\n",
    ),
    Mistake(
        name="keyed pass: equal hashes are taken for equal keys",
        file=_BY_KEY,
        old='    rows["length"] = np.fromiter(map(len, keys)',
        new="    keys = [half.tobytes() for half in shared.hash.of(keys)]\n"
        '    rows["length"] = np.fromiter(map(len, keys)',
    ),
)
