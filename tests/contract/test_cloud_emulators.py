"""Writers that are killed and writers that race, as processes, on Azurite and fake-gcs-server; and a bare emulator."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.emulators.servers import BUCKET, Azurite, FakeGcs, azure_settings, gcs_settings

from tandem.sink.store import ObjectStore, PutResult, StoreAccess, StoreRejectedError
from tandem.sink.store.open_store import open_adapter

pytestmark = pytest.mark.slow

KEYS, SIZE, WRITERS = 120, 200_000, 5
# Puts each key and notes which it was told to have created, before it goes on.
_WRITER = """
import json, os, random, sys, time
from tandem.sink.store import PutResult, StoreAccess
from tandem.sink.store.open_store import open_adapter
root, settings, me, keys, size, notes, gate = json.loads(sys.argv[1])
store = open_adapter(root, StoreAccess(**settings))
store.head("race/warm")
open(f"{gate}-{me}", "w").close()
while not os.path.exists(gate):
    time.sleep(0.001)
with open(notes, "a") as file:
    # Half of the keys in an order of its own: who is ahead in one order would create all.
    order = random.Random(me).sample(range(keys), keys // 2)
    for number in [*order, *(one for one in range(keys) if one not in order)]:
        if store.put_if_absent(f"race/{number:04d}", bytes([me]) * (size + me)) is PutResult.CREATED:
            file.write(f"{number}\\n")
            file.flush()
"""


@pytest.fixture(params=["az", "gs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """A root of this test's own on one of the emulators, and its settings."""
    if request.param == "az":
        settings = azure_settings(request.getfixturevalue("azurite"))
    else:
        settings = gcs_settings(request.getfixturevalue("gcs_url"), tmp_path)
    return f"{request.param}://{BUCKET}/{tmp_path.name}", settings


def test_of_processes_that_race_one_creates_and_killed_ones_leave_nothing_half(
    place: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Every object is whole and of one writer, nobody else was told that it created it, also if two die by kill -9."""
    root, settings = place
    store = open_adapter(root, StoreAccess(**settings))
    gate = tmp_path / "gate"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, json.dumps([root, settings, me, KEYS, SIZE, notes, str(gate)])]
        )
        for me in range(WRITERS)
        for notes in [str(tmp_path / f"{me}.txt")]
    ]
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("gate-*"))) < WRITERS and time.monotonic() < deadline:
        time.sleep(0.01)
    gate.touch()
    for victim, begun in ((0, 3), (1, KEYS // 3)):
        while _count(store) < begun and time.monotonic() < deadline:
            time.sleep(0.01)
        assert writers[victim].poll() is None, "it was through before it could be killed"
        writers[victim].kill()
    assert [writer.wait(60) for writer in writers] == [-9, -9, 0, 0, 0]

    notes = {
        me: {int(line) for line in file.read_text().split("\n")[:-1]}
        for me in range(WRITERS)
        if (file := tmp_path / f"{me}.txt").exists()
    }
    assert max(Counter(number for created in notes.values() for number in created).values()) == 1
    assert len({me for me, created in notes.items() if created}) > 1, "nobody raced"
    for number in range(KEYS):
        body = store.get(f"race/{number:04d}")
        owner = body[0]
        assert body == bytes([owner]) * (SIZE + owner)
        told = [me for me, created in notes.items() if number in created]
        # Only a killed writer may have created an object without noting it.
        assert told == [owner] or (told == [] and owner in {0, 1})
    assert _count(store) == KEYS


def _count(store: ObjectStore) -> int:
    return sum(1 for _ in store.list("race/"))


def test_a_server_that_is_killed_has_what_it_confirmed(
    place: tuple[str, dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    """And its names stay taken."""
    root, settings = place
    store = open_adapter(root, StoreAccess(**settings))
    server: Azurite | FakeGcs = request.getfixturevalue("azurite" if root.startswith("az") else "fake_gcs")
    assert store.put_if_absent("kept", b"first") is PutResult.CREATED
    if isinstance(server, Azurite):
        time.sleep(6)  # the emulator writes its index every five seconds; Azure itself answers when it is safe
    server.kill()
    server.start()
    assert store.get("kept") == b"first"
    assert store.put_if_absent("kept", b"other") is PutResult.EXISTS


def test_a_bare_fake_gcs_server_is_refused(fake_gcs: FakeGcs, tmp_path: Path) -> None:
    """It takes no puts of Google's XML API but those of signed URLs, whose condition it ignores; see `gcs_front`."""
    store = open_adapter(f"gs://{BUCKET}/bare", StoreAccess(**gcs_settings(fake_gcs.endpoint_url, tmp_path)))
    with pytest.raises(StoreRejectedError):
        store.probe("")
