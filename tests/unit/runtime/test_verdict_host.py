"""What is made of a cell's end: whose it was, and never that nothing ran where something may have."""

from types import SimpleNamespace

import pytest

from saggar.runtime.verdict_host import ender, verdict

SUSPECTED = {"suspected": {"limit": "memory", "note": "mapped much"}}


def judged(code, status, *, made=True, detail=None):
    ended = {"code": code, "status": status, "cause": "", "detail": detail or {}, "made": made}
    prepared = SimpleNamespace(missing=None, argv=["/bin/sh"], workspace=SimpleNamespace(mode="none"), grants=[])
    return verdict(prepared, SimpleNamespace(ended=ended, failure=None, disk_full=lambda: False))


@pytest.mark.parametrize(
    ("status", "number"),
    # itself by SIGKILL and SIGXCPU; a keeper's 256 - 9 and 256 - 24; bubblewrap's 128 + 9; no signal; not known
    [(9, 9), (24, 24), (247 << 8, 9), (232 << 8, 24), (137 << 8, 9), (125 << 8, 0), (0, 0), (None, 0)],
)
def test_a_cell_that_was_ended_is_no_command_that_did_not_run(status, number):
    assert ender(status) == number
    cause, code, signal, message, detail = judged(None, status)
    assert (cause, code, signal) == ("infrastructure", None, 0)
    assert "the command had started" in message
    assert "could not be executed" not in message
    assert (detail["started"], detail["ended_by_signal"], detail["note"]) == (True, number, message)


def test_a_failed_exec_is_said():
    cause, code, _, message, detail = judged(None, 1 << 8)
    assert (cause, code, detail) == ("not_executable", None, {"status": 1 << 8})
    assert message.startswith("`/bin/sh` could not be executed: ")


@pytest.mark.parametrize(("code", "end"), [(1, ("exit", 1, 0)), (134, ("signal", None, 6))])
def test_a_suspicion_leaves_the_end_to_the_command(code, end):
    cause, exit_code, signal, _, detail = judged(code, code << 8, detail=SUSPECTED)
    assert (cause, exit_code, signal) == end
    assert detail == SUSPECTED
