"""Tab for values that only the store knows: what it offers, and that it does not wait or speak where there is none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR, Backup, records
from support.backups.requests import cut_request

from tandem.sink.store import open_store
from tandem.sink.store.chain import checkpoints, restore_targets
from tandem.sink.store.chain.chain_writer import now_ms

#: Far above the limit of completion, far below the time-outs of a store, also on a busy machine (seconds).
_PATIENCE_S = 20.0


def offered(line: str, folder: Path) -> list[str]:
    """What bash is offered at the end of a line, in a process of its own that starts in this folder."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
    words = {"_TANDEM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    slow = "from tandem.controller.cli.options import completion; completion.LIMIT_S = 4.0; "
    done = subprocess.run(
        [sys.executable, "-c", f"{slow}from tandem.controller.cli.main import main; main()"],
        env={**environ, **words},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A folder with a configuration, a generation of two topics, a checkpoint, and what a restore noted."""
    place = tmp_path / "store"
    place.mkdir()
    store = open_store(place.as_uri())
    data = [*records("orders", 0, range(3)), *records("prices", 0, range(3))]
    Backup.begun(store, data, number=1, instance="a").complete()
    at = now_ms(store)
    checkpoints.put_request(store, cut_request(id="before-migration", at=at, deadline=at + 600_000))
    restore_targets.announce_targets(store, PAIR, "ab" * 32, "cluster", ["orders.restored", "prices.restored"])
    (tmp_path / "tandem.yaml").write_text(f"pair: {PAIR}\nstore: {{root: '{place.as_uri()}'}}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("tandem restore o", ["orders"]),
        ("tandem verify --topics orders,p", ["orders,prices"]),
        ("tandem records ", ["orders", "prices"]),
        ("tandem -c tandem.yaml checkpoint show b", ["before-migration"]),
        ("tandem export --checkpoint ", ["before-migration"]),
        ("tandem history -g ", ["1"]),
        ("tandem restore vanished orders --generation ", ["1"]),
        ("tandem catch-up --generation ", ["1"]),
        ("tandem verify --against-generation 1,", ["1,1"]),
        ("tandem describe ", ["1", "orders", "prices"]),
        ("tandem describe x", []),
        ("tandem restore adopt or", ["orders.restored"]),
    ],
)
def test_names_of_the_backup_are_offered(line: str, names: list[str], backup: Path) -> None:
    """Topics, checkpoints and generations that begin with what is typed, from the configuration of the folder."""
    assert offered(line, backup) == names


def test_options_on_the_line_name_the_store(backup: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """--root and --pair count, as they do when the command runs."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    place = f"--root {(backup / 'store').as_uri()} --pair {PAIR}"
    assert offered(f"tandem describe {place} o", elsewhere) == ["orders"]
    assert offered("tandem describe o", elsewhere) == []


def test_a_store_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    """A server that accepts and says nothing: no name, no word, no error, and soon."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "blackhole.yaml").write_text(
            f"pair: {PAIR}\nstore: {{root: 's3://bucket/x', endpoint_url: '{endpoint}', region: x,"
            " access_key_id: x, secret_access_key: x}\n"
        )
        began = time.monotonic()
        assert offered("tandem describe -c blackhole.yaml ", tmp_path) == []
        assert time.monotonic() - began < _PATIENCE_S
        server.settimeout(1)
        server.accept()[0].close()  # it was asked
