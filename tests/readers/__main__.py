"""`python -m readers`: applications judge a restore; with --page the table goes to docs/quality/readers.md.

Exit code 3: an application cannot use what was restored, or could not be installed. The folder with logs is kept then.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

from support.lines import say

from readers.applications import APPLICATIONS
from readers.campaign import Campaign
from readers.page import table, write_page

WRONG = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="readers", description="Let applications judge a restore.")
    parser.add_argument(
        "--only", default="", help="applications in whose name or title this regular expression is found"
    )
    parser.add_argument("--page", action="store_true", help="write the rows to docs/quality/readers.md")
    parser.add_argument("--restore", default="", help="options of tandem restore, e.g. '--offsets dense'")
    words = parser.parse_args()
    only = re.compile(words.only, re.IGNORECASE)
    chosen = [item for item in APPLICATIONS if only.search(f"{item.name} {item.title}")]
    if not chosen:
        parser.error(f"no application has {words.only!r} in its name or title")
    folder = Path(tempfile.mkdtemp(prefix="tandem-readers-"))
    say(f"{len(chosen)} applications, in {folder}")
    began = time.monotonic()
    rows = Campaign(chosen, folder, say, shlex.split(words.restore)).run()
    say(table(rows))
    if words.page and not write_page(rows, words.restore, whole=not words.only):
        say(f"docs/quality/readers.md has no table of restores with {words.restore}")
    wrong = [row for row in rows if not row.passed]
    for row in wrong:
        say(f"wrong: {row.title}, {row.case}: {'; '.join(row.faults)}")
    if wrong:
        say(f"kept: {folder}")
        return WRONG
    shutil.rmtree(folder, ignore_errors=True)
    say(f"all right after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
