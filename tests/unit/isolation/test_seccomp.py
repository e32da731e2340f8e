"""The filter as a program: every row is evaluated by a reference interpreter, and by the kernel in tests/attacks."""

from __future__ import annotations

import os
import re
import struct
import time

import pytest

from saggar.core.errors import Unenforceable
from saggar.isolation import seccomp

ARCHES = ("x86_64", "aarch64")
ALLOW = 0x7FFF_0000
KILL = 0x8000_0000


def run(program: bytes, nr: int, args: tuple[int, ...] = (), arch: int = 0) -> int:
    """A classic-BPF interpreter of the few instructions that the filter uses; bounds are checked as the kernel does."""
    code = list(struct.iter_unpack("<HBBI", program))
    data = struct.pack("<IIQ6Q", nr, arch, 0, *(*args, *([0] * (6 - len(args)))))
    accumulator = at = 0
    while True:
        op, then, other, k = code[at]
        at += 1
        if op == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif op == 0x06:
            return k
        else:
            taken = {0x15: accumulator == k, 0x25: accumulator > k, 0x45: bool(accumulator & k)}[op]
            at += then if taken else other


def verdict(arch: str, call: str, *args: int, shared: bool = False) -> int:
    nr = seccomp.number(call, arch)
    return run(seccomp.build_filter(arch, shared=shared), nr, args, seccomp._AUDIT_ARCH[arch])


def errno_of(value: int) -> int:
    return value & 0xFFFF if value & 0xFFFF_0000 == 0x0005_0000 else 0


def refused_arguments(row: seccomp.Refusal) -> tuple[int, ...]:
    args = [0] * 6
    for kind, index, values in row.tests:
        args[index] = {"bits": values[0], "among": values[0], "above": values[0] + 1}.get(kind, 89)
    return tuple(args)


@pytest.mark.parametrize(
    ("arch", "row"),
    [
        pytest.param(arch, row, id=f"{arch}-{row.call}-{row.reason[:30]}")
        for arch in ARCHES
        for row in seccomp.REFUSALS
        if seccomp.number(row.call, arch) is not None
    ],
)
def test_every_row_is_refused_with_its_errno(arch: str, row: seccomp.Refusal) -> None:
    shared = row.only == "shared"
    assert errno_of(verdict(arch, row.call, *refused_arguments(row), shared=shared)) == row.errno
    # a dirty high half changes nothing: the kernel would drop it
    high = tuple(a | 0xDEAD_BEEF_0000_0000 for a in refused_arguments(row))
    assert errno_of(verdict(arch, row.call, *high, shared=shared)) == row.errno
    if shared:
        assert verdict(arch, row.call, *refused_arguments(row)) == ALLOW


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    ("call", "args"),
    [
        ("ioctl", (0, 0x5413)),  # TIOCGWINSZ
        ("ioctl", (0, 0x5410)),  # TIOCSPGRP: job control
        ("ioctl", (0, 0x5401)),  # TCGETS
        ("fcntl", (0, 2)),  # F_SETFD
        ("fcntl", (0, 7)),  # F_SETLKW
        ("fcntl", (0, 1033)),  # F_ADD_SEALS
        ("socket", (1, 1, 0)),
        ("socket", (2, 1, 6)),
        ("socket", (2, 2, 17)),
        ("socket", (10, 0x80001, 0)),
        ("socket", (16, 3, 0)),
        ("socketpair", (1, 1, 0)),
        ("clone", (0x3D0F00,)),  # what pthread_create passes
        ("clone", (0x1200011,)),  # what fork passes
        ("unshare", (0x400,)),  # CLONE_FILES
        ("personality", (0xFFFF_FFFF,)),
        ("personality", (0,)),
    ],
)
def test_what_programs_need_is_allowed(arch: str, call: str, args: tuple[int, ...]) -> None:
    assert verdict(arch, call, *args) == ALLOW


@pytest.mark.parametrize(
    ("call", "args", "errno"),
    [
        ("socket", (40, 1, 0), 97),  # VSOCK
        ("socket", (17, 3, 0), 97),  # PACKET
        ("socket", (38, 5, 0), 97),  # ALG
        ("socket", (15, 3, 2), 97),  # KEY
        ("socket", (0, 1, 0), 97),
        ("socket", (16, 3, 9), 93),  # netlink audit
        ("socket", (16, 3, 12), 93),  # netfilter
        ("socket", (2, 1, 132), 93),  # SCTP
        ("socket", (10, 1, 262), 93),  # MPTCP
        ("socketpair", (2, 1, 0), 97),
        ("clone", (0x1000_0000,), 1),
        ("clone", (0x4000_0011,), 1),
        ("clone", (0x2000_0011,), 1),
        ("clone", (0x0002_0011,), 1),
        ("unshare", (0x80,), 1),
        ("personality", (0x40000,), 1),  # ADDR_NO_RANDOMIZE
        ("ptrace", (0,), 1),
        ("clone3", (), 38),
    ],
)
def test_named_refusals(call: str, args: tuple[int, ...], errno: int) -> None:
    for arch in ARCHES:
        assert errno_of(verdict(arch, call, *args)) == errno


@pytest.mark.parametrize("arch", ARCHES)
def test_foreign_calls(arch: str) -> None:
    program = seccomp.build_filter(arch)
    native = seccomp._AUDIT_ARCH[arch]
    for foreign in (0x4000_0003, 0x4000_0028, 0xC000_003E, 0xC000_00B7, 0):
        if foreign != native:
            assert run(program, 0, (), foreign) == KILL
    assert errno_of(run(program, 0x4000_0000 | 41, (2, 1, 0), native)) == 38  # x32 socket
    assert errno_of(run(program, seccomp.NEWEST + 1, (), native)) == 38
    assert errno_of(run(program, 0xFFFF_FFFF, (), native)) == 38
    assert run(program, seccomp.NEWEST, (), native) == ALLOW


@pytest.mark.parametrize("arch", ARCHES)
def test_no_other_number_is_refused(arch: str) -> None:
    program, native = seccomp.build_filter(arch), seccomp._AUDIT_ARCH[arch]
    named = {seccomp.number(r.call, arch) for r in seccomp.REFUSALS}
    for nr in range(seccomp.NEWEST + 1):
        assert (run(program, nr, (), native) == ALLOW) or nr in named


def test_a_counted_cell_may_use_shared_segments() -> None:
    program = seccomp.build_filter("x86_64", uncounted=False)
    native = seccomp._AUDIT_ARCH["x86_64"]
    assert run(program, 29, (0, 1 << 30), native) == ALLOW
    assert errno_of(run(seccomp.build_filter("x86_64"), 29, (0, 1 << 30), native)) == 38


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    ("size", "errno"),
    [(0, 0), (56, 0), (16384, 0), (16385, 38), (1 << 31, 38), (1 << 32, 38), ((1 << 32) + 56, 38), (1 << 63, 38)],
)
def test_small_segments_stay_whatever_is_watched(arch: str, size: int, errno: int) -> None:
    assert errno_of(verdict(arch, "shmget", 0, size, 0)) == errno


def test_a_cell_with_a_cpu_group_may_pin_itself() -> None:
    native = seccomp._AUDIT_ARCH["x86_64"]
    assert run(seccomp.build_filter("x86_64", pinned=False), 203, (), native) == ALLOW
    assert errno_of(run(seccomp.build_filter("x86_64"), 203, (), native)) == 1


def test_every_reason_is_given_once_per_call_and_test() -> None:
    keys = [(r.call, r.tests) for r in seccomp.REFUSALS]
    assert len(keys) == len(set(keys))
    assert all(r.reason and r.errno in (1, 38, 93, 97) for r in seccomp.REFUSALS)


def test_unknown_architecture_is_unenforceable() -> None:
    with pytest.raises(Unenforceable) as info:
        seccomp.build_filter("riscv64")
    assert "riscv64" in str(info.value)
    assert info.value.remedy


def test_building_costs_less_than_a_millisecond() -> None:
    best = 1.0
    for _ in range(20):
        seccomp._built.clear()
        start = time.perf_counter()
        seccomp.build_filter("x86_64")
        best = min(best, time.perf_counter() - start)
    assert best < 0.001


@pytest.mark.parametrize(
    ("arch", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_numbers_are_the_kernel_headers(arch: str, header: str) -> None:
    if not os.path.exists(header):
        pytest.skip("no kernel headers on this host")
    with open(header, encoding="ascii", errors="replace") as file:
        known = {m[1]: int(m[2]) for m in re.finditer(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", file.read())}
    for call, nr in seccomp._NUMBERS[arch].items():
        assert known.get(call, nr) == nr, call  # older headers lack newer calls
    # a call that a header knows and the table names, but not for this architecture, would slip through
    missing = {r.call for r in seccomp.REFUSALS} & set(known) - set(seccomp._NUMBERS[arch])
    assert not missing
