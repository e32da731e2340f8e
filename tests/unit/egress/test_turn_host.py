"""Records first, then bytes."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from saggar.egress.heap_host import TRIM_BYTES
from saggar.egress.turn_host import Turn


class End:
    def __init__(self, log, name):
        self.log = log
        self.name = name

    def send_now(self):
        self.log.append(f"send {self.name}")

    def cut(self):
        self.log.append(f"cut {self.name}")


def rounds(commit, names=("a", "b")):
    """What happened to ends that all had something to say in one round, and then to one in the next."""
    log = []

    async def run():
        turn = Turn(asyncio.get_running_loop(), lambda: log.append("commit") or commit)
        for name in names:
            turn.add(End(log, name))
        assert log == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        turn.add(End(log, "later"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(run())
    return log


def test_i1_one_commit_before_all_that_was_said_in_a_round():
    assert rounds(True) == ["commit", "send a", "send b", "commit", "send later"]


def test_i1_nothing_is_sent_where_the_records_cannot_be_written():
    assert rounds(False) == ["commit", "cut a", "cut b", "commit", "cut later"]


class Faulty(End):
    def send_now(self):
        raise ValueError("a fault of ours")

    def failed(self, error):
        self.log.append(f"failed {self.name}: {error}")
        raise error


def test_a_fault_in_one_end_ends_that_one_alone():
    log = []

    async def run():
        turn = Turn(asyncio.get_running_loop(), lambda: True)
        for end in (End(log, "a"), Faulty(log, "b"), End(log, "c")):
            turn.add(end)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert log == ["send a", "failed b: a fault of ours", "send c"]


def test_i1_a_fault_in_the_records_cuts_everybody():
    log = []

    def commit():
        raise ValueError("no record")

    async def run():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: log.append(str(context["exception"])))
        turn = Turn(loop, commit)
        for name in "ab":
            turn.add(End(log, name))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert log == ["cut a", "cut b", "no record"]


def test_kept_heap_takes_no_page_faults_for_a_piece_of_a_body():
    code = """
import resource, sys
from saggar.egress.heap_host import keep_heap
if sys.argv[1] == "keep" and not keep_heap(): print(-1); raise SystemExit
pieces = [b"x" * 300_000 for _ in range(4)]; del pieces
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    a = bytes(262144); b = a[1:]; c = b[1:]; del a, b, c
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    assert TRIM_BYTES > 3 * 262144

    def faults(how):
        argv = [sys.executable, "-c", code, how]
        return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)

    kept = faults("keep")
    assert kept < 2000
    assert kept < 0 or kept < faults("not") / 5
