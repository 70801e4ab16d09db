"""The page of topics: search, sums, one topic's partitions; nothing in a query is markup."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.pages.html_check import Page, checked
from support.pairs.sights import sight
from support.pipeline.doubles import MemoryStore

from tandem.controller.cli.output.output import size
from tandem.controller.history.describe import describe_topic
from tandem.controller.http.page.content import ROWS, Content, content
from tandem.controller.http.page.render import topics
from tandem.controller.http.page.topics import topic_page
from tandem.controller.status.overview import overview

COMPACTED = {"cleanup.policy": "compact", "delete.retention.ms": "86400000"}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock_ms=1_790_000_000_000)


def shown(store: MemoryStore, *specs: TopicSpec, **ends: int) -> Content:
    """One complete generation; `ends` are the ends of partition 0 of topics."""
    backup = Backup.claim(store, topics=specs, number=1, instance="a")
    backup.commit(records(specs[0].name, 0, range(20)))
    backup.complete()
    seen = sight(store, topics=list(specs), ends={(topic, 0): end for topic, end in ends.items()})
    return content(overview(seen), me="a", turns=[], ran=None)


def drawn(found: Content, query: str) -> Page:
    return checked(topics(topic_page(found, query)))


def test_all_topics_worst_first(store: MemoryStore) -> None:
    """A topic that lags comes before those that do not; each leads to its partitions."""
    found = shown(
        store,
        TopicSpec("orders", partitions=3, config=COMPACTED),
        TopicSpec("prices", partitions=1, config=COMPACTED),
        orders=25,
        prices=0,
    )
    told = drawn(found, "")
    rows = [row for row in told.rows() if row[0] in {"orders", "prices"}]
    assert [row[:4] for row in rows] == [["orders", "3", "3", "5"], ["prices", "1", "1", "0"]]
    assert "2 topics, of generation 1, worst first" in told.text
    assert [link.attributes["href"] for link in told.all("a")][1:3] == ["topics?topic=orders", "topics?topic=prices"]


def test_a_search(store: MemoryStore) -> None:
    """By a part of the name, in whatever case; it stays in the field."""
    found = shown(store, TopicSpec("Orders.EU", partitions=1), TopicSpec("prices", partitions=1))
    told = drawn(found, "q=orders")
    assert [row[0] for row in told.rows()][1:] == ["Orders.EU"]
    assert told.all("input")[0].attributes["value"] == "orders"
    assert "0 topics with “nowhere” in the name" in drawn(found, "q=nowhere").text


def test_one_topic(store: MemoryStore) -> None:
    """Its partitions, and the commands that say what the backup holds of it."""
    found = shown(store, TopicSpec("orders", partitions=3), TopicSpec("prices", partitions=1))
    told = drawn(found, "topic=orders")
    assert {row[0] for row in told.rows()} - {"Partition"} == {"orders-0", "orders-1", "orders-2"}
    assert "tandem describe orders" in told.texts("code")
    assert "has no topic of this name" in drawn(found, "topic=nowhere").text


def test_what_the_generation_holds_of_a_topic(store: MemoryStore) -> None:
    """By partition, and in all: objects that partitions share count once there. It is what `tandem describe` says."""
    orders, prices = TopicSpec("orders", partitions=3), TopicSpec("prices")
    backup = Backup.claim(store, topics=[orders, prices], number=1, instance="a")
    backup.commit(records("orders", 0, range(5, 1205)))
    backup.commit([*records("orders", 0, range(1300, 1310)), *records("orders", 1, range(7))], journal=True)
    backup.commit(records("prices", 0, range(9)))
    backup.complete()
    seen = sight(store, topics=[orders, prices])
    found = content(overview(seen), me="a", turns=[], ran=None)
    stored = describe_topic(seen, "orders", ()).copies[0].stored
    assert (stored.records, stored.objects) == (1217, 2)
    told = checked(topics(topic_page(found, "topic=orders", seen.generations)))
    rows = {row[0].split()[0]: row[1:6] for row in told.rows()}
    assert rows["Partition"] == ["First", "Offset", "Records", "Size", "Objects"]
    assert rows["orders-0"][:3] + rows["orders-0"][4:] == ["5", "1,310", "1,210", "2"]
    assert rows["orders-1"][:3] + rows["orders-1"][4:] == ["0", "7", "7", "1"]
    assert rows["orders-2"] == ["\u2013", "0", "0", "0 B", "0"]
    assert rows["all"] == ["", "1,217", size(stored.bytes), "2", ""]
    assert "Records" not in drawn(found, "topic=orders").text, "the generation is not there any more"


def test_ten_thousand_partitions_are_bounded(store: MemoryStore) -> None:
    """Fifty rows, and the total of all; the page stays small."""
    many = TopicSpec("many", partitions=10_000)
    backup = Backup.claim(store, topics=[many], number=1, instance="a")
    backup.commit([one for n in range(0, 10_000, 10) for one in records("many", n, range(2))], journal=True)
    backup.complete()
    seen = sight(store, topics=[many])
    found = content(overview(seen), me="a", turns=[], ran=None)
    html = topics(topic_page(found, "topic=many", seen.generations))
    rows = list(checked(html).rows())
    assert sum(row[0].startswith("many-") for row in rows) == ROWS
    assert rows[-2][0].startswith("and 9,950 more")
    assert (rows[-1][0], rows[-1][2], rows[-1][4]) == ("all 10,000", "2,000", "1")
    assert len(html) < 50_000


def test_one_of_ten_thousand_partitions_is_found(store: MemoryStore) -> None:
    """Whatever its rank, by its number; the field keeps it, and is not there where all are listed."""
    many, few = TopicSpec("many", partitions=10_000), TopicSpec("few", partitions=3)
    backup = Backup.claim(store, topics=[many, few], number=1, instance="a")
    backup.commit([*records("many", 4711, range(7)), *records("many", 5000, range(9))], journal=True)
    backup.complete()
    seen = sight(store, topics=[many, few])
    found = content(overview(seen), me="a", turns=[], ran=None)
    told = checked(topics(topic_page(found, "topic=many&partition=4711", seen.generations)))
    assert [[row[0].split()[0], row[3], row[5]] for row in told.rows()][1:] == [["many-4711", "7", "1"]]
    fields = {each.attributes["name"]: each.attributes["value"] for each in told.all("input")}
    assert fields == {"topic": "many", "partition": "4711"}
    assert [each.attributes["value"] for each in drawn(found, "topic=many").all("input")] == ["many", ""]
    assert drawn(found, "topic=few").all("input") == []
    for absent in ("10000", "-1", "4711x", "04711"):
        assert f"There is no partition {absent}." in drawn(found, f"topic=many&partition={absent}").text


def test_ten_thousand_topics_are_bounded(store: MemoryStore) -> None:
    """Fifty are shown, and how many more there are."""
    found = shown(store, *(TopicSpec(f"t{number}", partitions=1) for number in range(10_000)))
    told = drawn(found, "")
    assert sum(row[0].startswith("t") for row in told.rows()) == ROWS
    assert "and 9,950 more, none of them worse" in told.text


def test_before_anything_is_built() -> None:
    """The page is there all the same."""
    assert "No generation takes records yet" in drawn(Content(pair="shop", me="a", found=None), "q=x").text


NASTY = "<script>alert(1)</script>\"'&amp;<!--"


@pytest.mark.parametrize("name", ["q", "topic", "topic=orders&partition"])
def test_a_query_is_text(store: MemoryStore, name: str) -> None:
    """Whatever somebody put into a link."""
    found = shown(store, TopicSpec("orders", partitions=1))
    told = drawn(found, f"{name}={quote(NASTY)}")
    assert all("alert(1)" not in element.text for element in told.all("script"))
    assert not any(
        "alert(1)" in (value or "") for one in told.elements for key, value in one.attributes.items() if key != "value"
    )


@pytest.mark.parametrize("query", ["q=%FF%FE", "q", "&&&", "q=" + "x" * 5000, "topic=%00", ";" * 99])
def test_a_query_that_is_none(store: MemoryStore, query: str) -> None:
    """It finds nothing, or everything."""
    drawn(shown(store, TopicSpec("orders", partitions=1)), query)
