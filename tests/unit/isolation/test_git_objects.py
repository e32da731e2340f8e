"""Objects by their hash: what git itself makes passes, and no bytes pass or raise that are anything else."""

import hashlib
import os
import struct
import subprocess
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saggar.isolation.git_objects import FORGED, MAX_OBJECTS, MAX_PACKED, UNCHECKED, Work, loose_fault, pack_fault

IDENTITY = {f"GIT_{who}_{what}": "a@a.test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(*words, cwd):
    env = os.environ | IDENTITY | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", *words], cwd=cwd, env=env, check=True, capture_output=True)


@pytest.fixture(scope="module", params=["sha1", "sha256"])
def repository(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("repository")
    git("init", "-q", f"--object-format={request.param}", cwd=path)
    for i in range(6):
        (path / "f").write_text("".join(f"{n}\n" for n in range(i, 3000)))
        (path / "empty").write_text("")
        git("add", ".", cwd=path)
        git("commit", "-q", "-m", "c", cwd=path)
    git("tag", "-a", "-m", "t", "v1", cwd=path)
    return path


def test_what_git_makes_passes(repository):
    seen = 0
    for path in (repository / ".git/objects").glob("??/*"):
        name, data = path.parent.name + path.name, path.read_bytes()
        assert loose_fault(name, [data]) == ""
        assert loose_fault(name, [data[i : i + 5] for i in range(0, len(data), 5)]) == ""
        assert loose_fault("0" * len(name), [data]) == FORGED
        seen += 1
    assert seen > 15
    for options in ("-adfq", "-adfq", "--depth=1"):
        git("repack", "-adfq", options, cwd=repository)
        (pack,) = (repository / ".git/objects/pack").glob("*.pack")
        digits = len(pack.stem) - len("pack-")
        assert pack_fault(pack.read_bytes(), pack.with_suffix(".idx").read_bytes(), digits) == ""


def test_a_pack_with_a_base_that_it_lacks(repository):
    """What travels in a fetch: git completes it before it stores it."""
    done = subprocess.run(
        ["git", "pack-objects", "--thin", "--revs", "--stdout", "-q"],
        cwd=repository, input=b"HEAD\n^HEAD~1\n", capture_output=True, check=True,
    )  # fmt: skip
    git("repack", "-adfq", cwd=repository)
    (pack,) = (repository / ".git/objects/pack").glob("*.pack")
    assert pack_fault(done.stdout, pack.with_suffix(".idx").read_bytes(), len(pack.stem) - 5) == UNCHECKED


def _pack():
    body = b"PACK\0\0\0\2\0\0\0\1" + bytes([3 << 4 | 5]) + zlib.compress(b"hello")
    return body + hashlib.sha1(body).digest()


@given(st.binary(max_size=200), st.integers(0, 60), st.binary(min_size=1, max_size=3))
@settings(max_examples=300)
def test_no_bytes_raise(junk, at, patch):
    assert loose_fault("1" * 40, [junk]) == FORGED
    assert pack_fault(junk, b"", 40) == UNCHECKED
    whole = _pack()
    body = whole[:-20]
    body = body[:at] + patch + body[at + len(patch) :]
    assert pack_fault(body + hashlib.sha1(body).digest(), junk, 40) == UNCHECKED


@given(st.binary(max_size=80))
@settings(max_examples=300)
def test_no_delta_raises(delta):
    """A base, and a delta on it whose instructions are anything."""
    packed = zlib.compress(delta)
    head = len(delta) & 15 | 6 << 4
    size = bytes([head]) if len(delta) < 16 else bytes([head | 0x80, len(delta) >> 4])
    base = bytes([3 << 4 | 5]) + zlib.compress(b"hello")
    body = b"PACK\0\0\0\2\0\0\0\2" + base + size + bytes([len(base)]) + packed
    assert pack_fault(body + hashlib.sha1(body).digest(), b"", 40) == UNCHECKED


@pytest.mark.parametrize("digits", [0, 39, 41, 128])
def test_names_of_another_length(digits):
    assert loose_fault("1" * digits, [b""]) == FORGED
    assert pack_fault(_pack(), b"", digits) == UNCHECKED


def _number(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _entry(kind, content, between=b""):
    first, rest = kind << 4 | len(content) & 15, len(content) >> 4
    head = bytes([first | 0x80]) + _number(rest) if rest else bytes([first])
    return head + between + zlib.compress(content, 1)


def _whole(*entries, count=0):
    body = b"PACK" + struct.pack(">II", 2, count or len(entries)) + b"".join(entries)
    return body + hashlib.sha1(body).digest()


def _peak(pack):
    tracemalloc.start()
    try:
        assert pack_fault(pack, b"", 40) == UNCHECKED
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_delta_of_single_bytes_takes_no_more_than_it_makes():
    """A megabyte of pack took nine gigabytes."""
    base = _entry(3, b"a")
    size = 1 << 17
    delta = _number(1) + _number(size) + b"\x01x" * size
    assert _peak(_whole(base, _entry(6, delta, bytes([len(base)])))) < 8 * size + (1 << 18)


def test_an_object_of_a_pack_that_is_too_large_to_hold_is_not_unpacked():
    assert _peak(_whole(_entry(3, bytes(MAX_PACKED + 1)))) < 1 << 20


def test_more_objects_than_can_be_listed_are_not_looked_at():
    """Nine bytes of pack each, 300 of memory."""
    data = _whole(_entry(3, b"") * 50, count=MAX_OBJECTS + 1)
    work = Work()
    before = work.left
    assert pack_fault(data, b"", 40, work) == UNCHECKED
    assert work.left == before


def test_the_work_for_all_objects_together_ends():
    content = bytes(1 << 20)
    data = b"blob %d\0" % len(content) + content
    name, packed = hashlib.sha1(data).hexdigest(), zlib.compress(data)
    work = Work(5 << 20)
    said = [loose_fault(name, [packed], work) for _ in range(6)]
    assert said == [""] * 4 + [UNCHECKED] * 2
    assert pack_fault(_pack(), b"", 40, work) == UNCHECKED
