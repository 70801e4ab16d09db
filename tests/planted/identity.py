"""Mistakes in which topic it is: ids, names, brokers of other versions."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="the zero UUID is taken for a topic id",
        file="sink/tandem/sink/kafka/wire/topic_ids.py",
        old='    return "" if found == as_text(ZERO) else found\n',
        new="    return found\n",
    ),
    Mistake(
        name="two topics may have one id",
        file="sink/tandem/sink/kafka/wire/topic_ids.py",
        old="        if len(names) > 1:\n",
        new="        if not names:\n",
    ),
    Mistake(
        name="limits that a cluster does not know are set",
        file="spark_jobs/tandem/spark_jobs/restore/plan/timestamp_limits.py",
        old="if key not in LIMITS or key in known or value not in {None, NONE}",
        new="if key not in LIMITS or known is not None",
    ),
)
