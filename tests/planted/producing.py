"""Mistakes in errors of brokers while a restore loads."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="a transaction that the broker aborted for its age is another run's takeover",
        file="spark_jobs/produce.py",
        old="        case Meaning.FENCED if open_s >= TRANSACTION_TIMEOUT_MS / 1000:\n",
        new="        case Meaning.FENCED if open_s < 0:\n",
    ),
    Mistake(
        name="a time limit that the brokers refuse is asked for again and again",
        file="sink/source/error_codes.py",
        old="        50,\n        _M.RUN,\n",
        new="        50,\n        _M.TRANSIENT,\n",
    ),
    Mistake(
        name="what was appended is checked behind other people's transactions",
        file="spark_jobs/restore_check.py",
        old="        return not self.among_others\n",
        new="        return True\n",
    ),
)
