"""The judge of a soak: what grows is found, what goes up and down is not."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from soak.process import in_use, look
from soak.samples import Sample, judge, slope_of, windows_of

WIDTH = 360.0


def samples(
    *,
    hours: float = 2.0,
    rss: Callable[[float], float] = lambda _: 150e6,
    allocated: Callable[[float], float] = lambda _: 30e6,
    blocks: Callable[[float], float] = lambda _: 400e3,
    threads: Callable[[float], int] = lambda _: 30,
    descriptors: Callable[[float], int] = lambda _: 50,
) -> list[Sample]:
    """One each ten seconds; functions of the time in seconds."""
    return [
        Sample(
            at=at,
            rss=round(rss(at)),
            anonymous=0,
            threads=threads(at),
            descriptors=descriptors(at),
            children=0,
            cpu_s=at * 0.1,
            allocated=round(allocated(at)),
            blocks=round(blocks(at)),
        )
        for at in (10.0 * step for step in range(round(hours * 360)))
    ]


def role(at: float) -> int:
    """0 and 1 by turns."""
    return int(at // 180) % 2


def test_what_comes_and_goes_with_the_roles_is_flat() -> None:
    """More memory, threads and descriptors in every other turn, with a peak now and then."""
    found = judge(
        samples(
            rss=lambda at: 150e6 + 20e6 * role(at) + (40e6 if at % 1000 == 0 else 0),
            threads=lambda at: 24 + 10 * role(at),
            descriptors=lambda at: 40 + 20 * role(at) + int(at % 1500 == 0) * 30,
        ),
        start=720.0,
        width=WIDTH,
    )
    assert found.flat, found.reasons
    assert found.cpu_share == pytest.approx(0.1)
    assert found.first["threads"].highest == 34


@pytest.mark.parametrize(
    ("measure", "level", "step", "growth"),
    [("rss", 150e6, 20e6, 3e6), ("allocated", 30e6, 10e6, 0.4e6), ("blocks", 400e3, 50e3, 4e3)],
)
def test_memory_that_grows(measure: str, level: float, step: float, growth: float) -> None:
    """A little each hour, below steps ten times as large."""
    grows = {measure: lambda at: level + step * role(at) + growth * at / 3600}
    found = judge(samples(**grows), start=720.0, width=WIDTH)
    assert found.slopes[measure] == pytest.approx(growth, rel=0.05)
    assert [reason.split(" by ")[0] for reason in found.reasons] == [f"{measure} grows"]
    less = {measure: lambda at: level + step * role(at) + growth * at / 7200}
    assert judge(samples(**less), start=720.0, width=WIDTH).flat


def test_turns_that_take_longer_than_others_are_no_growth() -> None:
    """An Active for two fifths of a window at first, for three fifths at last: the median jumps, neither level does."""

    def rss(at: float) -> float:
        share = 0.4 + 0.2 * at / 7200
        return 150e6 + 20e6 * (at % WIDTH < share * WIDTH)

    found = judge(samples(rss=rss), start=720.0, width=WIDTH)
    assert found.flat, found.reasons
    assert found.last["rss"].median - found.first["rss"].median == 20e6


@pytest.mark.parametrize("growing", [0, 1])
def test_one_role_alone_that_grows(growing: int) -> None:
    """Three megabytes an hour in one of the two roles, none in the other."""
    found = judge(
        samples(rss=lambda at: 150e6 + 20e6 * role(at) + 3e6 * at / 3600 * (role(at) == growing)),
        start=720.0,
        width=WIDTH,
    )
    assert found.slopes["rss"] == pytest.approx(3e6, abs=0.1e6)
    assert not found.flat


def test_what_is_never_closed() -> None:
    """One thread and one descriptor more with each turn, among ten that come and go."""
    found = judge(
        samples(
            threads=lambda at: 24 + 10 * role(at) + int(at // 360),
            descriptors=lambda at: 40 + 10 * role(at) + int(at // 360),
        ),
        start=720.0,
        width=WIDTH,
    )
    assert [reason.split(":")[0] for reason in found.reasons] == ["threads", "descriptors"]


def test_pools_that_fill() -> None:
    """Late in a soak, once: a second thread for tasks, and connections that stay open."""
    found = judge(
        samples(
            threads=lambda at: 24 + 10 * role(at) + int(at > 4000),
            descriptors=lambda at: 40 + 10 * role(at) + 5 * int(at > 4000),
        ),
        start=720.0,
        width=WIDTH,
    )
    assert found.flat, found.reasons


def test_too_short_is_not_flat() -> None:
    """Whoever ran it for ten minutes has learned nothing."""
    found = judge(samples(hours=0.3), start=0.0, width=WIDTH)
    assert not found.enough
    assert not found.flat
    assert not judge([], start=0.0, width=WIDTH).flat


def test_windows_are_whole() -> None:
    """What comes before the start, and the rest at the end, do not count."""
    found = windows_of(samples(hours=0.5), start=100.0, width=400.0)
    assert [(window[0].at, window[-1].at) for window in found] == [
        (100.0, 490.0),
        (500.0, 890.0),
        (900.0, 1290.0),
        (1300.0, 1690.0),
    ]


def test_a_slope_is_robust() -> None:
    """One window far off does not tilt the line."""
    points = [(float(n), 10.0 + n) for n in range(9)]
    points[4] = (4.0, 900.0)
    assert slope_of(points) == pytest.approx(1.0, abs=0.3)
    assert slope_of(points[:1]) == 0


def test_a_look_at_this_process() -> None:
    """What /proc says of whoever asks."""
    before = look(os.getpid(), at=1.0)
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(7)]
    after = look(os.getpid(), at=2.0)
    for descriptor in opened:
        os.close(descriptor)
    assert after.descriptors - before.descriptors == 7
    assert after.rss > after.anonymous > 1e6
    assert after.threads >= 1
    assert after.cpu_s >= before.cpu_s > 0
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        look(2**22 - 1, at=0.0)


def test_what_an_instance_says_of_itself() -> None:
    """Both figures of its page, with labels and among others."""
    page = (
        "# HELP tandem_malloc_allocated_bytes What\n# TYPE tandem_malloc_allocated_bytes gauge\n"
        'tandem_malloc_allocated_bytes{instance_name="a",pair="p q"} 2.9360128e+07\n'
        'tandem_python_blocks{instance_name="a",pair="p q"} 401234.0\n'
    )
    assert in_use(page) == (29_360_128, 401_234)
