"""What it would cost to hear of refused system calls: a filter that answers by itself against one that asks a listener.

    python bench/refused_calls.py

Prints one JSON line for each of four filters over the calls of `CALLS`: `errno` (as a cell has), `notify` (SECCOMP_RET_USER_NOTIF, a
Python listener in the parent answers EPERM), `both` (the one under the other: errno wins and nobody is told), `deaf` (the listener
is closed). Needs no privilege. The numbers are quoted in docs/decisions/0017-refused-calls-leave-no-record.md.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import select
import socket
import statistics
import struct
import time

from saggar.isolation.seccomp import number

CALLS = (
    "bpf", "perf_event_open", "keyctl", "add_key", "request_key", "io_uring_setup", "userfaultfd", "ptrace", "process_vm_readv",
    "open_by_handle_at", "init_module", "kexec_load", "fanotify_init", "setns",
)  # fmt: skip
SECCOMP = {"x86_64": 317, "aarch64": 277}[platform.machine()]
PR_SET_NO_NEW_PRIVS, SET_MODE_FILTER, NEW_LISTENER = 38, 1, 8
ALLOW, ERRNO, USER_NOTIF = 0x7FFF_0000, 0x0005_0000, 0x7FC0_0000
RECV, SEND = 0xC050_2100, 0xC018_2101  # SECCOMP_IOCTL_NOTIF_*, linux/seccomp.h
ROUNDS = 300

libc = ctypes.CDLL(None, use_errno=True)


def install(action: int, flags: int) -> tuple[int, float]:
    """(listener or 0, seconds that it took)"""
    numbers = [n for call in CALLS if (n := number(call, platform.machine())) is not None]
    pack = struct.Struct("<HBBI").pack
    code = [pack(0x20, 0, 0, 0), *(pack(0x15, len(numbers) - i, 0, n) for i, n in enumerate(numbers))]
    code += [pack(0x06, 0, 0, ALLOW), pack(0x06, 0, 0, action)]
    program = ctypes.create_string_buffer(b"".join(code), 8 * len(code))
    pointer = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(program)), 16)
    start = time.perf_counter()
    listener = libc.syscall(SECCOMP, SET_MODE_FILTER, flags, pointer)
    took = time.perf_counter() - start
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener, took


def inside(kind: str, sock: socket.socket) -> None:
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    notify = kind != "errno"
    listener, took = install(USER_NOTIF if notify else ERRNO | errno.EPERM, NEW_LISTENER if notify else 0)
    if notify:
        socket.send_fds(sock, [b"x"], [listener])
        os.close(listener)
    if kind == "both":
        install(ERRNO | errno.EPERM, 0)
    sock.recv(1)
    keyctl = number("keyctl", platform.machine())
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        libc.syscall(keyctl, 0, 0, 0, 0, 0)
        times.append(time.perf_counter() - start)
    found = {"install_us": took * 1e6, "call_us": statistics.median(times) * 1e6}
    line = {n: round(v, 1) for n, v in found.items()} | {"errno": errno.errorcode[ctypes.get_errno()]}
    sock.send(json.dumps(line).encode())


def answer(listener: int) -> int:
    """Deny until nobody is left to ask; how many asked."""
    asked = 0
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while (events := poll.poll(2000)) and not events[0][1] & select.POLLHUP:
        request = bytearray(80)
        fcntl.ioctl(listener, RECV, request)
        cookie = struct.unpack_from("<Q", request)[0]
        fcntl.ioctl(listener, SEND, bytearray(struct.pack("<QqiI", cookie, 0, -errno.EPERM, 0)))
        asked += 1
    return asked


def measure(kind: str) -> None:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        try:
            inside(kind, theirs)
        finally:
            os._exit(0)
    theirs.close()
    listener = socket.recv_fds(ours, 1, 1)[1][0] if kind != "errno" else -1
    if kind == "deaf":
        os.close(listener)
    ours.send(b"g")
    before = time.process_time()
    asked = answer(listener) if kind in ("notify", "both") else 0
    used = time.process_time() - before
    line = {"filter": kind, **json.loads(ours.recv(1000)), "heard": asked}
    if asked:
        line["listener_cpu_us"] = round(used / asked * 1e6, 1)
    print(json.dumps(line))
    os.waitpid(pid, 0)


if __name__ == "__main__":
    for name in ("errno", "notify", "both", "deaf"):
        measure(name)
