"""The questions of a platform engineer: each is answered two clicks from the start page, by what comes first.

A place is a page, or a heading of it. The words of an answer are those that a reader looks for; figures are taken from
where they are made, so that a page can't keep old ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from bench.worked_sum import rendered
from tandem.controller.roles import s3
from tandem.controller.roles.role import CredentialRole

ROOT = Path(__file__).parents[3]
START = "README.md"
LIST = "docs/questions.md"


@dataclass(frozen=True, slots=True)
class Answer:
    """Where a question is answered, by a page or a heading of it, and the words that its first paragraph holds."""

    place: str
    words: tuple[str, ...]


def figures(row: str) -> list[str]:
    """The two columns of a row of the worked sum, as the page prints them."""
    (line,) = [line for line in rendered().splitlines() if line.startswith((f"| {row}", f"| **{row}"))]
    return [cell.strip(" *") for cell in line.strip("|").split("|")[1:]]


ALERTS = len(re.findall(r"^## Tandem", (ROOT / "docs" / "alerts.md").read_text("utf-8"), re.MULTILINE))
TURN, RESTORE = figures("a turn**"), figures("a restore of everything")
COST = figures("all of it, a month")
ZONES = figures("two thirds of it across zones, a month")
IAM = ("ListBucket", "GetObject", "PutObject", "DeleteObject", "ListBucketMultipartUploads", "AbortMultipartUpload")
IAM_SETTINGS = ("GetBucketVersioning", "GetLifecycleConfiguration")

ANSWERS = {
    "How large must it be?": Answer("docs/resources.md", ("one and a half cores", "1 GiB", "no disk", "2.2 times")),
    "What does it cost a month for 500 GB in 60 topics?": Answer(
        "docs/recovery-objectives.md#cost-per-month-500-gb-in-60-topics", (*COST, ZONES[0].split()[0])
    ),
    "Which rights does it need in IAM?": Answer(
        "docs/roles.md", (*(f"s3:{name}" for name in (*IAM, *IAM_SETTINGS)), "`Read`", "`DescribeConfigs`")
    ),
    "How is it upgraded?": Answer("docs/operations.md#upgrade", ("Stop the Passive", "then", "liveness.timeout")),
    "What if both instances are lost?": Answer(
        "docs/operations.md#both-instances-are-lost", ("Start both again", "same file", "no disk")
    ),
    "What if the cluster is lost, too?": Answer(
        "docs/operations.md#the-cluster-is-lost", ("new cluster", "store alone", "tandem.yaml", "key")
    ),
    "What if a topic loses keys, or gets wrong values?": Answer(
        "docs/operations.md#a-topic-has-lost-keys-or-has-wrong-values",
        ("tandem rewind", "tandem restore vanished", "tandem restore TOPIC"),
    ),
    "Can it restore into another cluster with another number of partitions?": Answer(
        "docs/restore.md#another-cluster-another-number-of-partitions",
        ("--target-config", "--partitions", "--repartition murmur2"),
    ),
    "How long does a turn take?": Answer("docs/recovery-objectives.md#how-long-a-turn-takes", tuple(TURN)),
    "What if a topic is deleted and created again?": Answer(
        "docs/operations.md#a-topic-is-created-again", ("kept until you release it", "read from its start")
    ),
    "Does it work with Strimzi?": Answer(
        "docs/strimzi.md", ("KafkaUser", "secrets", "KafkaTopic", "strimzi.io/managed")
    ),
    "Does it work with MSK and IAM?": Answer("docs/connections.md#amazon-msk-with-iam", ("aws.msk.iam: true", "9098")),
    "What if the encryption key is lost?": Answer("docs/encryption.md#the-key-is-lost", ("lost", "another key")),
    "What if the signing key is lost?": Answer(
        "docs/signing.md#the-private-key-is-lost", ("another key", "trust", "does not start")
    ),
    "What are RPO and RTO?": Answer("docs/recovery-objectives.md", ("RPO: 60 s", *(f"{time} " for time in RESTORE))),
    "How is it monitored?": Answer("docs/alerts.md", ("/metrics", f"{ALERTS} alerts", "tandem check")),
    "How are a person's records erased?": Answer("docs/erasure.md", ("tandem erase", "proves")),
    "What about consumer offsets?": Answer(
        "docs/restore.md#consumer-groups", ("tandem restore groups", "translated", "would have read next")
    ),
}


@cache
def links(page: str) -> dict[str, str]:
    """Where a page leads to, as paths below the repository with anchors; the values are the texts of the links."""
    text = (ROOT / page).read_text("utf-8")
    found = {}
    for match in re.finditer(r"\[([^\]]+)\]\(([^)\s]+)\)", text):
        name, _, anchor = match[2].partition("#")
        if re.match(r"[a-z]+:", name):
            continue
        target = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        if target.is_relative_to(ROOT):
            found[str(target.relative_to(ROOT)) + (f"#{anchor}" if anchor else "")] = match[1]
    return found


def slug(heading: str) -> str:
    """The anchor that code hosts and the site give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def first_paragraph(place: str) -> str:
    """What stands below a heading, or below the title of a page: its first paragraph, on one line."""
    page, _, anchor = place.partition("#")
    text = (ROOT / page).read_text("utf-8")
    for match in re.finditer(r"^#+ (.+)$", text, re.MULTILINE):
        if not anchor or slug(match[1]) == anchor:
            return " ".join(text[match.end() :].strip().partition("\n\n")[0].split())
    raise AssertionError(f"{page} has no heading {anchor}")


def test_all_are_on_the_list() -> None:
    """It has exactly these questions, each with the place of its answer and one line."""
    rows = re.findall(r"^\| \[([^\]]+)\]\(([^)]+)\) \| (.+) \|$", (ROOT / LIST).read_text("utf-8"), re.MULTILINE)
    assert {question: f"docs/{place}" for question, place, _ in rows} == {
        question: answer.place for question, answer in ANSWERS.items()
    }
    assert len(rows) == len(ANSWERS)
    assert all(len(short) > 20 for _, _, short in rows)


@pytest.mark.parametrize("question", ANSWERS)
def test_an_answer_is_two_clicks_away(question: str) -> None:
    """From the start page to the list or the page itself, and from there to the very heading."""
    place = ANSWERS[question].place
    assert LIST in links(START)
    one_click = {name.partition("#")[0] for name in links(START)}
    assert place in {*links(START), *(two for page in one_click if page.endswith(".md") for two in links(page))}


@pytest.mark.parametrize("question", ANSWERS)
def test_the_page_begins_with_the_answer(question: str) -> None:
    """The first sentence is bold: it says the answer. The paragraph holds the words and figures of it."""
    answer = ANSWERS[question]
    text = first_paragraph(answer.place)
    assert text.startswith("**")
    for word in answer.words:
        assert word in text, f"{answer.place} does not begin with {word!r}"


def test_the_list_says_the_same_figures() -> None:
    """Durations and dollars of the short answers are those of the worked sum."""
    text = (ROOT / LIST).read_text("utf-8")
    for figure in (*TURN, RESTORE[0], COST[0].split()[0], COST[1].split()[0], ZONES[0].split()[0], f"{ALERTS} alerts"):
        assert figure in text


def test_the_rights_are_those_of_the_policy() -> None:
    """The names of the actions that the page begins with are all that a writer gets, in either instance."""
    place = s3.place_of("s3://bucket/prefix", pair="orders", instances=("a", "b"))
    statements = s3.policy(place, CredentialRole.WRITER, instance="a")["Statement"]
    actions = {action for statement in statements for action in statement["Action"]}
    assert actions == {f"s3:{name}" for name in (*IAM, *IAM_SETTINGS)}
