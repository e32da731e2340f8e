from __future__ import annotations

import time

import pytest

from saggar.core.errors import ParseError
from saggar.egress.glob import Glob, PathPattern

PATHS = [
    ("/a", "/a", True),
    ("/a", "/a/", False),
    ("/a", "/ab", False),
    ("/a", "/b/a", False),
    ("/a/*", "/a/b", True),
    ("/a/*", "/a/", True),
    ("/a/*", "/a/b/c", False),
    ("/a/*", "/a", False),
    ("/a/**", "/a", True),
    ("/a/**", "/a/", True),
    ("/a/**", "/a/b/c/d", True),
    ("/a/**", "/ab", False),
    ("/**", "/", True),
    ("/**/c", "/a/b/c", True),
    ("/**/c", "/c", True),
    ("/**/c", "/c/d", False),
    ("/a/**/b/**/c", "/a/b/c", True),
    ("/a/**/b/**/c", "/a/x/b/y/z/c", True),
    ("/a/**/b/**/c", "/a/x/y/z/c", False),
    ("/a/**/b/c/**/d", "/a/b/b/c/x/d", True),
    ("/v1/models/*-mini", "/v1/models/gpt-4-mini", True),
    ("/v1/models/*-mini", "/v1/models/-mini", True),
    ("/v1/models/*-mini", "/v1/models/gpt-4-min", False),
    ("/a*b*c", "/abc", True),
    ("/a*b*c", "/axxbxxc", True),
    ("/a*b*c", "/axxc", False),
    ("/a*a", "/a", False),
]


@pytest.mark.parametrize(("pattern", "path", "expected"), PATHS)
def test_path_pattern(pattern, path, expected):
    assert PathPattern.parse(pattern).matches(path) is expected


@pytest.mark.parametrize(
    "bad",
    [
        "a",
        "",
        "/a//b",
        "/a/../b",
        "/a**",
        "/**a/b",
        "/a?b",
        "/a b",
        "/é",
        "/a;b",
        "/%2fa",
        "/%41",
        "/" + "*" * 20,
        "/a" * 70,
    ],
)
def test_pattern_that_matches_nothing_is_refused(bad):
    with pytest.raises(ParseError) as e:
        PathPattern.parse(bad)
    assert e.value.reason == "bad_pattern"


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("*", "", True),
        ("a*", "a/b/c", True),
        ("*c", "ab", False),
        ("a**b", "a-b", True),
        ("", "", True),
        ("", "x", False),
    ],
)
def test_value_glob(pattern, value, expected):
    assert Glob.parse(pattern).matches(value) is expected


def test_hostile_pattern_and_subject_stay_linear():
    pattern = PathPattern.parse("/" + "a*" * 15 + "b")
    values = Glob.parse("a*" * 15 + "b")
    started = time.process_time()
    for _ in range(20):
        assert not pattern.matches("/" + "a" * 16000)
        assert not values.matches("a" * 16000)
        assert not PathPattern.parse("/**/a/**/a/**/a/**/b").matches("/a" * 8000)
    assert time.process_time() - started < 2.0


#: pattern and a subject of 16 KiB that makes every run try everywhere and fail at its last piece
HOSTILE = {
    "a long run of segments": ("/**/" + "a/" * 58 + "b/**/c", "/a" * 8000 + "/c"),
    "a run of stars": ("/**/" + "*a/" * 12 + "b/**/c", "/a" * 8000 + "/c"),
    "stars inside segments": ("/**/" + "*a*a*/" * 4 + "b/**/c", "/aa" * 5000 + "/c"),
    "many runs": ("/**/a/a/a/a/a/b/**/a/a/a/a/a/a/b/**/c", "/a" * 8000 + "/c"),
    "runs of one": ("/**/*/**/*/**/*/**/b/**/c", "/a" * 8000 + "/c"),
    "a long segment": ("/" + "a*" * 15 + "b*", "/" + "a" * 16000),
    "a needle that nearly fits": ("/*" + "a" * 900 + "b*", "/" + "a" * 16000),
    "a needle that fits but for its middle": ("/*" + "a" * 450 + "b" + "a" * 450 + "*", "/" + ("a" * 449 + "b") * 35),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_twice_the_subject_takes_twice_the_time(case):
    text, subject = HOSTILE[case]
    pattern = PathPattern.parse(text)
    tail = "/c" if subject.endswith("/c") else ""
    half = subject[: len(subject) // 2].rpartition("/")[0] + tail if tail else subject[: len(subject) // 2]

    def cost(path):
        best = 9.0
        for _ in range(5):
            started = time.process_time()
            assert not pattern.matches(path)
            best = min(best, time.process_time() - started)
        return best

    whole = cost(subject)
    assert whole < 0.5
    # quadratic would be 4; below a millisecond the clock says nothing
    assert whole < 0.001 or whole < 3.2 * cost(half)
