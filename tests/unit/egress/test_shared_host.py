"""The memory that a cell's processes share: real processes, a real lock."""

import os
import signal
import time

import pytest

from saggar.egress import shared_host
from saggar.egress.shared_host import MAX_PLACES, NAME_BYTES, Shared


@pytest.fixture
def shared():
    made = Shared.make(2)
    yield made
    made.close()


def other(shared):
    """The same memory as the second process sees it; here for what needs no lock between the two."""
    return Shared(os.dup(shared.fd), 1, 2)


def child(work):
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return pid


def test_a_lock_excludes_another_process_and_falls_with_its_holder(shared):
    ready, told = os.pipe()

    def hold():
        with shared:
            os.write(told, b"x")
            time.sleep(60)

    pid = child(hold)
    os.read(ready, 1)
    waiter = child(lambda: shared.__enter__())
    time.sleep(0.1)
    assert os.waitpid(waiter, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert os.waitpid(waiter, 0)[1] == 0


def test_each_process_counts_its_own_ends(shared):
    second = other(shared)
    second.end_one()
    second.end_one()
    assert (shared.ended(0), shared.ended(1)) == (0, 2)


def test_records_come_from_one_bucket(shared):
    second = other(shared)
    assert sum(s.may_record(100.0, burst=3, rate=1) for s in (shared, second, shared, second)) == 3
    assert second.may_record(101.0, burst=3, rate=1)
    assert not shared.may_record(101.0, burst=3, rate=1)


def test_questions_are_bounded_together(shared):
    second = other(shared)
    assert [shared.hold(2), second.hold(2), shared.hold(2)] == [True, True, False]
    second.let_go()
    assert shared.hold(2)


def test_issued_tokens_are_known_to_both(shared):
    second = other(shared)
    assert not second.fresh
    shared.issue({"p1": ("token-1", "r")}, 2)
    assert second.fresh
    assert second.issued() == {"p1": ("token-1", "r")}
    assert not second.fresh
    second.issue({"p2": ("token-2", "r"), "p3": ("x" * 100_000, "r")}, 2)
    assert list(shared.issued()) == ["p2", "p3"]
    # what fell out of the list is nowhere any more
    shared.issue({"p4": ("t", "r"), "p5": ("t", "r")}, 2)
    assert b"token-" not in os.pread(shared.fd, 1 << 22, 0)


def test_places_are_bounded_and_found_by_both(shared, monkeypatch):
    monkeypatch.setattr(shared_host, "MAX_PLACES", 2)
    second = other(shared)
    first = shared.add_place("a.test")
    assert first >= 0
    assert second.add_place("b" * NAME_BYTES) > first
    assert second.add_place("c.test") == -1
    assert [name for name, _ in shared.places(0)] == ["a.test", "b" * NAME_BYTES]
    assert shared.places(2) == []


def test_the_whole_table_fits(shared):
    for i in range(MAX_PLACES):
        assert shared.add_place(f"h{i}.test") >= 0
    assert shared.add_place("one-more.test") == -1
    shared.issue({"p": ("t", "r")}, 1)
    assert shared.places(MAX_PLACES - 1)[0][0] == f"h{MAX_PLACES - 1}.test"


def test_once_closed_what_ends_late_has_nothing_to_give_back(shared):
    shared.close()
    shared.end_one()
    shared.let_go()
    assert not shared.may_record(1.0, burst=1, rate=1)
    with pytest.raises((OSError, ValueError)):
        shared.hold(1)
