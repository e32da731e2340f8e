"""The filters, run by a small interpreter of classic BPF: both architectures, whichever one this is."""

import struct

import pytest

from saggar.egress import own_calls

ALLOW, KILL = 0x7FFF0000, 0x80000000
PID = 4321


def errno(number):
    return 0x50000 | number


def answer(program, arch, number, *arguments):
    lines = list(struct.iter_unpack("HBBI", program))
    data = struct.pack("IIQ6Q", number, own_calls.AUDIT_ARCH[arch], 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    at = held = 0
    while True:
        code, then, other, k = lines[at]
        at += 1
        if code == 0x20:
            held = struct.unpack_from("I", data, k)[0]
        elif code == 0x54:
            held &= k
        elif code == 0x06:
            return k
        else:
            hit = {0x15: held == k, 0x35: held >= k, 0x45: bool(held & k)}[code]
            at += then if hit else other


@pytest.fixture(params=list(own_calls.AUDIT_ARCH))
def arch(request):
    return request.param


@pytest.fixture
def ask(arch):
    column = list(own_calls.AUDIT_ARCH).index(arch)
    program = own_calls.closed(arch, PID, network=True)

    def ask(numbers, *arguments):
        return answer(program, arch, numbers[column] if isinstance(numbers, tuple) else numbers, *arguments)

    return ask


def test_i1_every_call_is_allowed_deadly_or_fails(arch):
    column = list(own_calls.AUDIT_ARCH).index(arch)
    program = own_calls.closed(arch, PID, network=True)
    allowed = {row[column] for row in own_calls.ALLOWED.values()}
    deadly = {row[column] for row in {**own_calls.DEADLY, **own_calls.RUNNING}.values()}
    tested = {own_calls._TGKILL, own_calls._PRLIMIT, own_calls._CLONE, own_calls._OPEN, own_calls._OPENAT}
    tested |= {own_calls._SOCKET, own_calls._SOCKETPAIR, own_calls._PRCTL, own_calls._IOCTL}
    assert not allowed & deadly - {-1}
    for number in set(range(700)) - {row[column] for row in tested}:
        expected = errno(38 if number >= 424 else 1)
        if number in allowed:
            expected = ALLOW
        elif number in deadly:
            expected = KILL
        assert answer(program, arch, number) == expected, number


CASES = [
    ("socket", own_calls._SOCKET, (2, 0o2004001, 6), ALLOW),
    ("socket", own_calls._SOCKET, (10, 2, 17), ALLOW),
    ("unix", own_calls._SOCKET, (1, 1, 0), errno(13)),
    ("netlink", own_calls._SOCKET, (16, 3, 0), errno(13)),
    ("raw", own_calls._SOCKET, (2, 3, 1), errno(13)),
    ("mptcp", own_calls._SOCKET, (2, 1, 262), errno(13)),
    ("the high half does not count", own_calls._SOCKET, (1 << 32 | 16, 1, 0), errno(13)),
    ("pair", own_calls._SOCKETPAIR, (1, 1, 0), ALLOW),
    ("pair", own_calls._SOCKETPAIR, (1, 0o2000005, 0), ALLOW),
    ("datagrams", own_calls._SOCKETPAIR, (1, 2, 0), errno(13)),
    ("inet pair", own_calls._SOCKETPAIR, (2, 1, 0), errno(13)),
    ("read", own_calls._OPENAT, (0, 0, 0o2000000), ALLOW),
    ("write", own_calls._OPENAT, (0, 0, 1), errno(13)),
    ("create", own_calls._OPENAT, (0, 0, 0o100), errno(13)),
    ("truncate", own_calls._OPENAT, (0, 0, 0o1000), errno(13)),
    ("thread", own_calls._CLONE, (0x3D0F00,), ALLOW),
    ("fork", own_calls._CLONE, (17,), errno(1)),
    ("namespace", own_calls._CLONE, (0x10000 | 0x40000000,), errno(1)),
    ("itself", own_calls._TGKILL, (PID, PID + 1, 6), ALLOW),
    ("another", own_calls._TGKILL, (PID + 1, PID + 1, 6), errno(13)),
    ("itself", own_calls._PRLIMIT, (0,), ALLOW),
    ("another", own_calls._PRLIMIT, (1,), errno(13)),
    ("dumpable", own_calls._PRCTL, (4, 1), errno(13)),
    ("no new privileges", own_calls._PRCTL, (38, 1), ALLOW),
    ("non-blocking", own_calls._IOCTL, (5, 0x5421), ALLOW),
    ("types", own_calls._IOCTL, (0, 0x5412), errno(13)),
]


@pytest.mark.parametrize(("what", "call", "arguments", "expected"), CASES)
def test_arguments(ask, what, call, arguments, expected):
    assert ask(call, *arguments) == expected, what


def test_another_architecture_and_x32_kill(arch):
    other = next(a for a in own_calls.AUDIT_ARCH if a != arch)
    for program in (own_calls.closed(arch, PID, network=True), own_calls.open_to_commands(arch, network=True)):
        assert answer(program, other, 0) == KILL
        assert answer(program, arch, 0x40000000) == KILL


def test_without_network(arch):
    column = list(own_calls.AUDIT_ARCH).index(arch)
    program = own_calls.closed(arch, PID, network=False)
    for call in (own_calls._SOCKET, *own_calls.CALLING.values()):
        assert answer(program, arch, call[column], 2, 1, 0) == KILL


def test_commands_may_all_but_the_worst(arch):
    column = list(own_calls.AUDIT_ARCH).index(arch)
    program = own_calls.open_to_commands(arch, network=True)

    def ask(row, *arguments):
        return answer(program, arch, row[column], *arguments)

    assert {ask(row) for row in own_calls.DEADLY.values()} == {KILL}
    assert {ask(row) for row in own_calls.OF_THE_MACHINE.values() if row[column] >= 0} == {errno(1)}
    assert ask(own_calls.RUNNING["execve"]) == ask(own_calls._CLONE, 17) == ask(own_calls._SOCKET, 1, 1) == ALLOW
    assert (ask(own_calls._PRLIMIT, 0), ask(own_calls._PRLIMIT, PID)) == (ALLOW, errno(13))


def test_rings_are_refused_before_there_is_a_loop(arch):
    program = own_calls.without_rings(arch)
    assert answer(program, arch, 425) == errno(38)
    assert answer(program, arch, 0) == ALLOW
