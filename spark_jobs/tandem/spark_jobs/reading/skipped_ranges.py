"""Decides in a job whether a range of a live log, of which only empty answers came, is skipped.

Instances ask other copies and the leader's index before they skip (decisions 77 and 93). A job compares the log with a
copy, and would report what the broker withholds as missing. So it asks the index, and reads on only where that names no
record in the range.
"""

from __future__ import annotations

from tandem.sink.kafka.events import Fetched, TopicPartition
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.read.reader_context import named_records


class SkippedRanges:
    """The ranges that one reader of one partition may skip.

    `withheld` says why the last one may not be skipped, as the end of a sentence; empty if there is no such range.
    """

    def __init__(self, fetcher: RawFetcher) -> None:
        self._fetcher = fetcher
        self.withheld = ""

    def reach(self, event: Fetched, read_to: int) -> int:
        """Return the offset at which the reader goes on after `event`, of which it has read up to `read_to`.

        That is the log's end if the event has evidence that nothing is left below it, and the leader's index names no
        record there. A leader that does not answer is asked again with the next event, as is one that names a record.
        """
        if event.evidence is None:
            if read_to > event.fetch_offset:
                self.withheld = ""
            return read_to
        place = TopicPartition(event.topic, event.partition)
        named = named_records(self._fetcher, [place]).get(place)
        if named is not None and not event.fetch_offset <= named < event.end_offset:
            self.withheld = ""
            return event.end_offset
        index = "does not say whether a record is there" if named is None else f"names the record at offset {named}"
        self.withheld = (
            f": nothing comes of offsets {event.fetch_offset} to {event.end_offset}, and its leader's index {index}"
        )
        return read_to
