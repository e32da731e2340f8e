import time

import pytest

from saggar.isolation.changes import (
    ADDED,
    DELETED,
    DIRECTORY,
    FILE,
    MODE,
    MODIFIED,
    SYMLINK,
    TYPE,
    Change,
    Node,
    allowed_mode,
    stat_line,
    unified,
)
from saggar.isolation.shown import shown


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain name.txt", "plain name.txt"),
        (b"\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        (b"a\nb\tc\r", "a\\x0ab\\x09c\\x0d"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("caf\u00e9 \U0001f600".encode(), "caf\u00e9 \U0001f600"),
        ("a\u202eb".encode(), "a\\u202eb"),
        ("a\u200bb\u2066\ufeff".encode(), "a\\u200bb\\u2066\\ufeff"),
        ("\U000e0041".encode(), "\\U000e0041"),
        ("\x9b31m".encode(), "\\x9b31m"),
        (b"\x7f", "\\x7f"),
    ],
)
def test_shown(raw, text):
    assert shown(raw) == text


def test_unified():
    before = b"".join(b"line %d\n" % i for i in range(20))
    after = before.replace(b"line 10\n", b"line ten\nmore\x1b[2J\n")
    assert list(unified(b"a b", before, after)) == [
        "--- a/a b",
        "+++ b/a b",
        "@@ -8,7 +8,8 @@",
        " line 7",
        " line 8",
        " line 9",
        "-line 10",
        "+line ten",
        "+more\\x1b[2J",
        " line 11",
        " line 12",
        " line 13",
    ]


def test_unified_of_new_and_gone_files():
    assert list(unified(b"n", None, b"x\ny")) == [
        "--- /dev/null", "+++ b/n", "@@ -0,0 +1,2 @@", "+x", "+y", "\\ No newline at end of file",
    ]  # fmt: skip
    assert list(unified(b"n", b"x\n", None)) == ["--- a/n", "+++ /dev/null", "@@ -1 +0,0 @@", "-x"]


def test_binary_and_large():
    assert list(unified(b"n", b"\0", b"\0\0")) == ["n: binary, 1 -> 2 bytes"]
    assert list(unified(b"n", b"\xff", b"a")) == ["n: binary, 1 -> 1 bytes"]
    assert list(unified(b"n", b"", b"a" * (2 << 20))) == ["n: 0 -> 2097152 bytes, too large to show"]


def test_hostile_texts_take_bounded_time():
    start = time.monotonic()
    lines = list(unified(b"n", b"a\nb\n" * 200_000, b"b\na\n" * 200_000))
    assert time.monotonic() - start < 5
    assert lines[-1].endswith("too many to compare @@")


FILE_NODE = Node(kind=FILE, mode=0o644, size=3)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (Change(b"a\x1b", ADDED, before=None, after=FILE_NODE), "A a\\x1b"),
        (Change(b"d", ADDED, before=None, after=Node(kind=DIRECTORY)), "A d/"),
        (Change(b"a", MODIFIED, before=FILE_NODE, after=Node(kind=FILE, size=9)), "M a (3 -> 9 bytes)"),
        (Change(b"d", DELETED, before=Node(kind=DIRECTORY), after=None), "D d/"),
        (Change(b"a", MODE, before=FILE_NODE, after=Node(kind=FILE, mode=0o4755)), "m a 0644 -> 0755"),
        (Change(b"l", TYPE, before=FILE_NODE, after=Node(kind=SYMLINK, target=b"\x07")), "T l -> \\x07"),
        (Change(b"l", TYPE, before=FILE_NODE, after=Node(kind=DIRECTORY)), "T l/ (file -> directory)"),
    ],
)
def test_stat_lines(change, line):
    assert stat_line(change) == line


def test_modes_that_may_come_out():
    assert allowed_mode(Node(kind=FILE, mode=0o7777)) == 0o777
    assert allowed_mode(Node(kind=DIRECTORY, mode=0o7777)) == 0o1777
