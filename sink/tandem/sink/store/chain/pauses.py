"""Pauses in the store: numbered and put if absent like claims, so they are read without listing and never change."""

from __future__ import annotations

from dataclasses import replace

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.signatures import SignatureError
from tandem.backup_avro.documents.pause import Pause, decode_pause, encode_pause
from tandem.backup_avro.errors import DamagedError
from tandem.sink.process.rates import RatedLog
from tandem.sink.store.contract.object_store import ObjectMissingError, ObjectStore, PutResult

_RATED = RatedLog(structlog.get_logger())


class PauseReader:
    """Reads the newest pause of one pair. Each refresh continues after the last number; one thread at a time."""

    def __init__(self, store: ObjectStore, pair: str) -> None:
        self._store = store
        self._pair = layout.check_name(pair, "pair")
        self._number = 0
        self._newest: Pause | None = None

    def refresh(self) -> Pause | None:
        """Read on; return the newest pause, None if there never was one. Raises errors of the store.

        A pause that can't be read is logged and ends the pause before it: new generations endanger no backup. A forged
        pause is logged and ignored.
        """
        while True:
            key = layout.pause_key(self._pair, self._number + 1)
            try:
                self._newest = self._parse(self._store.get(key), key)
            except ObjectMissingError:
                return self._newest
            except SignatureError as error:
                _RATED.error("a pause is forged and counts for nothing", error=error)
            except DamagedError as error:
                _RATED.error("a pause can't be read; turns go on", error=error)
                self._newest = None
            self._number += 1

    def _parse(self, data: bytes, key: str) -> Pause:
        pause = decode_pause(data, key)
        if (pause.number, pause.pair) != (self._number + 1, self._pair):
            raise DamagedError(f"{key} is pause {pause.number} of pair {pause.pair}", code="TDM-S019")
        return pause

    def append(self, draft: Pause) -> Pause:
        """Put `draft` under the next free number, which is filled in, and return it as it was written.

        Raises errors of the store: it is then unknown whether the pause is stored; a second call does no harm.
        """
        while True:
            self.refresh()
            pause = replace(draft, number=self._number + 1, pair=self._pair)
            data, key = encode_pause(pause), layout.pause_key(self._pair, pause.number)
            if self._store.put_if_absent(key, data) is PutResult.CREATED or self._store.get(key) == data:
                self.refresh()
                return pause
