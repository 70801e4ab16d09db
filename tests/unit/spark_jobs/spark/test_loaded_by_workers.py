"""What the process of Spark's Python workers loads before it forks: each restore waits for it."""

from __future__ import annotations

import subprocess
import sys

from tandem.spark_jobs.spark import worker_daemon


def test_workers_of_a_plain_restore_load_no_numpy() -> None:
    """It takes a tenth of the daemon's processor time, and only keyed and merged loads need it."""
    code = f"import sys, {worker_daemon.LOADED}; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
