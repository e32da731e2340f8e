"""One budget over several processes: the same answers as one process gives, and exact under a hammer."""

import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saggar.egress import shared_host
from saggar.egress.budget import Budget, Limits
from saggar.egress.shared_budget_host import NEAR_BYTES, SharedBudget
from saggar.egress.shared_host import MAX_PLACES, MAX_PROCESSES, Shared

NONE = Limits()
HOSTS = ("a.test", "b.test", "c.test")
SCOPES = (
    NONE,
    Limits(requests=7),
    Limits(bytes_up=300, bytes_down=200),
    Limits(rate=2.0),
    Limits(connections=3, hosts=2),
    Limits(wall_s=4.0, requests=5, rate=3.0),
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, MAX_PROCESSES - 1),
        st.sampled_from(HOSTS),
        st.sampled_from(("open", "close", "request", "up", "down")),
        st.integers(1, 120),
        st.sampled_from((0.0, 0.1, 1.0)),
    ),
    max_size=60,
)


def shares(count, limits, now=0.0):
    first = Shared.make(count)
    rest = [Shared(os.dup(first.fd), i, count) for i in range(1, count)]
    return [SharedBudget(limits, now, s) for s in (first, *rest)], (first, *rest)


@settings(deadline=None, max_examples=150)
@given(STEPS, st.sampled_from(SCOPES), st.sampled_from(SCOPES))
def test_the_answers_are_those_of_one_process(steps, task, host_limits):
    one = Budget(task, 0.0)
    several, memory = shares(MAX_PROCESSES, task)
    now = 0.0
    open_ = []
    try:
        for process, name, what, size, passes in steps:
            now += passes
            answers = []
            for budget in (one, several[process]):
                host = budget.host(name, host_limits, now)
                if what == "open":
                    answers.append(budget.open(host, now))
                elif what == "close":
                    if (process, name) in open_:
                        budget.close(host)
                elif what == "request":
                    answers.append(budget.request(host, now))
                else:
                    answers.append(getattr(budget, what)(host, size))
            if what == "open" and answers[0] is None:
                open_.append((process, name))
            elif what == "close" and (process, name) in open_:
                open_.remove((process, name))
            assert answers[:1] == answers[1:]
    finally:
        for part in memory:
            part.close()


def hammer(limits, host_limits, work, *, processes=3, each=334):
    """Sum of what `work(budget, host)` counted in so many processes at once."""
    first = Shared.make(processes + 1)
    start, go = os.pipe()
    answers, answer = os.pipe()
    SharedBudget(limits, 0.0, first)
    pids = []
    for index in range(processes):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.close(go)
                budget = SharedBudget(limits, 0.0, Shared(first.fd, index + 1, processes + 1))
                host = budget.host("a.test", host_limits, 0.0)
                os.read(start, 1)
                os.write(answer, struct.pack("i", sum(work(budget, host) for _ in range(each))))
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(go)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * processes
    total = sum(struct.unpack(f"{processes}i", os.read(answers, 4 * processes)))
    for fd in (start, answers, answer):
        os.close(fd)
    first.close()
    return total


@pytest.mark.parametrize(("task", "host"), [(Limits(requests=500), NONE), (NONE, Limits(requests=500))])
def test_a_thousand_requests_against_five_hundred(task, host):
    assert hammer(task, host, lambda budget, meter: budget.request(meter, 1.0) is None) == 500


@pytest.mark.parametrize(("task", "host"), [(Limits(requests=3000), NONE), (NONE, Limits(requests=3000))])
def test_what_is_counted_without_the_lock_is_exact_too(task, host):
    assert hammer(task, host, lambda budget, meter: budget.request(meter, 1.0) is None, each=2000) == 3000


def test_bytes_far_from_their_limit_are_exact_too():
    limit = Limits(bytes_down=2 * NEAR_BYTES)
    size = NEAR_BYTES // 512
    assert hammer(limit, NONE, lambda budget, meter: budget.down(meter, size) is None, each=1000) == 1024


def test_an_end_of_the_cell_counts_no_more():
    (first, second), memory = shares(2, Limits(requests=1000))
    host = second.host("a.test", NONE, 0.0)
    for part in memory:
        part.close()
    assert second.request(host, 0.0) is second.up(host, 1) is second.down(host, 1) is None


def test_a_thousand_connections_against_five_hundred():
    assert hammer(Limits(connections=500), NONE, lambda budget, meter: budget.open(meter, 1.0) is None) == 500


def test_connections_that_end_make_room():
    def work(budget, meter):
        if budget.open(meter, 1.0) is not None:
            return 1
        budget.close(meter)
        return 0

    # one each at a time: nobody is ever refused
    assert hammer(Limits(connections=4), NONE, work) == 0


def test_bytes_are_exact():
    assert 7 * hammer(Limits(bytes_up=7000), NONE, lambda budget, meter: budget.up(meter, 7) is None, each=400) == 7000


def test_bytes_without_a_limit_are_not_lost():
    (first, second), memory = shares(2, Limits(requests=100))
    for budget in (first, second):
        host = budget.host("a.test", NONE, 0.0)
        budget.up(host, 10)
        budget.down(host, 5)
        budget.request(host, 0.0)
    assert (first.host("a.test", NONE, 0.0), second.task.bytes_up, second.task.bytes_down) != (None, 10, 5)
    first.request(first.host("a.test", NONE, 0.0), 0.0)
    assert (first.task.requests, first.task.bytes_up, first.task.bytes_down) == (3, 20, 10)
    for part in memory:
        part.close()


def test_a_limit_that_comes_later_counts_what_was():
    (first, second), memory = shares(2, NONE)
    for budget in (first, second):
        host = budget.host("a.test", NONE, 0.0)
        assert [budget.request(host, 0.0) for _ in range(3)] == [None] * 3
    for budget in (first, second):
        budget.limit(Limits(requests=7))
    assert first.request(first.host("a.test", NONE, 0.0), 0.0) is None
    assert second.request(second.host("a.test", NONE, 0.0), 0.0).reason == "budget_requests"
    for part in memory:
        part.close()


def test_beyond_the_places_a_host_gets_no_connection(monkeypatch):
    monkeypatch.setattr(shared_host, "MAX_PLACES", 1)
    (first, second), memory = shares(2, NONE)
    assert first.open(first.host("a.test", NONE, 0.0), 0.0) is None
    refusal = second.open(second.host("b.test", NONE, 0.0), 0.0)
    assert (refusal.reason, refusal.limit) == ("budget_hosts", MAX_PLACES)
    assert second.open(second.host("a.test", NONE, 0.0), 0.0) is None
    for part in memory:
        part.close()


def test_the_limits_of_all_rules_hold_in_every_process():
    (first, second), memory = shares(2, NONE)
    for budget in (first, second):
        budget.limit(NONE, lambda host: Limits(requests=3, rate=9) if host == "a.test" else NONE)
    meters = [(budget, budget.host("a.test", limits, 0.0)) for budget, limits in ((first, NONE), (second, None))]
    assert [budget.request(meter, 0.0) is None for budget, meter in meters * 2] == [True, True, True, False]
    # the bucket began full, whoever made it
    assert first.host("a.test", NONE, 0.0).tokens == 6
    for part in memory:
        part.close()


def test_the_clock_starts_with_the_first_process():
    (first, second), memory = shares(2, Limits(wall_s=10.0), now=5.0)
    assert second.task.started == first.task.started == 5.0
    assert second.request(second.host("a.test", NONE, 14.0), 14.0) is None
    assert second.request(second.host("a.test", NONE, 16.0), 16.0).reason == "budget_wall"
    for part in memory:
        part.close()
