"""How long a turn and a restore take, and what a pair costs a month: `python -m bench.worked_sum` prints a worked sum.

Rates and requests are those of bench/README.md, read from that page, so that the sum changes with them; prices and the
pair are named here. `docs/recovery-objectives.md` has the sum between two markers, and a test holds that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[1] / "docs" / "recovery-objectives.md"
MARKERS: Final = ("<!-- made by `python -m bench.worked_sum` -->", "<!-- end -->")
_BENCH: Final = Path(__file__).with_name("README.md")
_WEEKS: Final = 365.25 / 12 / 7
"""Weeks in a month."""
_DAYS: Final = 365.25 / 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one instance, and Spark, were measured to do with records of one kind, on two cores.

    Rates are records per second, sizes bytes for each record: as brokers send it, and as it is stored.
    """

    catch_up: float
    load: float
    check: float
    start_s: float
    plan_s: float
    sent: float
    stored: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars: list prices in us-east-1, November 2026. Reads across zones are paid on both sides.

    A list costs what a put does; deletions are free.
    """

    storage_gb_month: float = 0.023
    puts_1000: float = 0.005
    gets_1000: float = 0.0004
    cross_zone_gb: float = 0.02

    def requests(self, counts: Mapping[str, float]) -> float:
        """Return what requests cost, counted by operation."""
        puts, gets = (sum(counts.get(one, 0) for one in names) for names in (("put", "post", "list"), ("get", "head")))
        return puts * self.puts_1000 / 1000 + gets * self.gets_1000 / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedPair:
    """A pair: `records` in the logs at a turn, `daily` new ones; days between turns, and of the recovery window.

    `network` is what an instance, or all tasks of a restore together, get in bytes per second. `zones` of the cluster:
    leaders are spread evenly over them.
    """

    records: int
    daily: int
    turn_days: float = 7.0
    window_days: float = 1.0
    network: float = 125e6
    zones: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """What comes out: seconds, GB (10^9 bytes) and dollars a month."""

    turn_s: float
    restore_s: float
    one_copy_gb: float
    stored_gb: float
    reserved_gb: float
    storage: float
    requests: float
    read_gb: float
    cross_zone: float

    @property
    def total(self) -> float:
        """Dollars a month."""
        return self.storage + self.requests + self.cross_zone


def rates(case: str, *, restored: str, catch_up: str) -> Rates:
    """Return the rates of a case of the tables; `restored` is the case and codec of the restore."""
    restored_case, codec = restored.split("/")
    plan = _row(restored_case, f"restore, {codec}: plan, topics")
    read = _row(case, catch_up)
    return Rates(
        catch_up=read[0],
        load=_row(restored_case, f"restore, {codec}: load")[0],
        check=_row(restored_case, f"restore, {codec}: check")[0],
        start_s=_row(restored_case, f"restore, {codec}: start of Spark")[2],
        plan_s=plan[2],
        sent=read[1] * 1e6 / read[0],
        stored=plan[1] * 1e6 / plan[0],
    )


def turn_s(records: float, rate: Rates, network: float) -> float:
    """Return how long the first reading of a turn takes: as fast as the instance, or as the network."""
    return max(records / rate.catch_up, records * rate.sent / network)


def restore_s(records: float, rate: Rates, network: float) -> float:
    """Return how long a restore takes: Spark's start, the plan, the load, and reading back what was loaded."""
    wire_s = records * rate.sent / network
    return rate.start_s + rate.plan_s + max(records / rate.load, wire_s) + max(records / rate.check, wire_s)


def work_out(pair: WorkedPair, rate: Rates, prices: Prices) -> Sum:
    """Return the sum for a pair."""
    one_copy = (pair.records + pair.daily * pair.turn_days) * rate.stored / 1e9
    average = (pair.records + pair.daily * pair.turn_days / 2) * rate.stored / 1e9
    turns = _DAYS / pair.turn_days
    turning = turn_s(pair.records, rate, pair.network) / 86_400 / pair.turn_days
    stored = average * (1 + pair.window_days / pair.turn_days + turning)
    requests = _requests_a_month()
    objects = pair.records * rate.stored / (64 << 20) * turns
    # Each turn every record that is there, and each new record once, or twice while a turn is under way.
    read = (pair.records * turns + pair.daily * _DAYS * (1 + turning)) * rate.sent / 1e9
    return Sum(
        turn_s=turn_s(pair.records, rate, pair.network),
        restore_s=restore_s(pair.records, rate, pair.network),
        one_copy_gb=one_copy,
        stored_gb=stored,
        reserved_gb=2.2 * one_copy,
        storage=stored * prices.storage_gb_month,
        requests=prices.requests({**requests, "put": requests["put"] + objects}),
        read_gb=read,
        cross_zone=read * (pair.zones - 1) / pair.zones * prices.cross_zone_gb,
    )


def rendered() -> str:
    """Return the sum as Markdown: 500 GB of JSON records of 1 KB in 60 topics, producers without and with zstandard."""
    plain = rates("j1000-600k-4-none", restored="j1000-2400k-4-none/none", catch_up="catch-up, zstandard, S3")
    packed = rates("j1000-600k-4-zstd", restored="j1000-2400k-4-none/zstd", catch_up="catch-up, zstandard")
    records = round(500e9 / plain.sent)
    pair = WorkedPair(records=records, daily=records // 20)
    both = plain, packed
    sums = [work_out(pair, rate, Prices()) for rate in both]
    rows = [
        ("a record as brokers send it", [f"{rate.sent:,.0f} B" for rate in both]),
        ("a record as it is stored", [f"{rate.stored:,.0f} B" for rate in both]),
        ("first reading, measured rate", [f"{rate.catch_up:,.0f} records/s" for rate in both]),
        ("load and check of a restore", [f"{rate.load:,.0f} and {rate.check:,.0f} records/s" for rate in both]),
        ("**a turn**: until the new copy is COMPLETE", [f"**{_time(one.turn_s)}**" for one in sums]),
        ("**a restore of everything**", [f"**{_time(one.restore_s)}**" for one in sums]),
        ("one copy, just before the next turn", [f"{one.one_copy_gb:,.0f} GB" for one in sums]),
        ("stored on average", [f"{one.stored_gb:,.0f} GB" for one in sums]),
        ("to be reserved", [f"{one.reserved_gb:,.0f} GB" for one in sums]),
        ("storage, a month", [f"{one.storage:,.2f} dollars" for one in sums]),
        ("requests, a month", [f"{one.requests:,.2f} dollars" for one in sums]),
        ("read from brokers, a month", [f"{one.read_gb:,.0f} GB" for one in sums]),
        ("two thirds of it across zones, a month", [f"{one.cross_zone:,.2f} dollars" for one in sums]),
        ("**all of it, a month**", [f"**{one.total:,.2f} dollars**" for one in sums]),
    ]
    given = (
        f"{records:,} records, {pair.daily:,} new ones a day (5 %), a turn every {pair.turn_days:g} days, "
        f"`recovery.window: {pair.window_days:g}d`, a network of {pair.network / 1e6:g} MB/s, {pair.zones} zones:"
    )
    lines = [
        given,
        "",
        "| | producers don't compress | producers use zstandard |",
        "|---|---:|---:|",
        *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows),
    ]
    return "\n".join(lines)


def _time(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"


def _row(case: str, what: str) -> tuple[float, float, float]:
    """Return (records/s, MB/s, seconds) of the newest row of a case in the tables of bench/README.md."""
    cells = rf"^\| {re.escape(case)} \| {re.escape(what)} \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|"
    found = re.findall(cells, _BENCH.read_text("utf-8"), re.MULTILINE)
    rate, mb, seconds = (float(cell.replace(",", "")) for cell in found[-1])
    return rate, mb, seconds


def _requests_a_month() -> dict[str, float]:
    """Return the requests of a month by operation.

    They are those of a week of commits with 1,000 busy partitions, which were counted without what instances look up,
    and those of a pair with nothing to do, which are nothing else.
    """
    puts, gets, lists = _counts(r"([\d,]+) puts, ([\d,]+) gets, ([\d,]+) lists")
    looked_up, listed = _counts(r"sends ([\d,]+) gets and ([\d,]+) lists a day")
    return {"put": puts * _WEEKS, "list": lists * _WEEKS + listed * _DAYS, "get": gets * _WEEKS + looked_up * _DAYS}


def _counts(pattern: str) -> tuple[int, ...]:
    found = re.search(pattern, _BENCH.read_text("utf-8"))
    assert found is not None
    return tuple(int(number.replace(",", "")) for number in found.groups())


def main() -> None:
    """Write the sum into the page."""
    text = PAGE.read_text("utf-8")
    begin, end = (text.index(marker) for marker in MARKERS)
    PAGE.write_text(f"{text[: begin + len(MARKERS[0])]}\n\n{rendered()}\n\n{text[end:]}", encoding="utf-8")
    sys.stdout.write(f"{rendered()}\n")


if __name__ == "__main__":
    main()
