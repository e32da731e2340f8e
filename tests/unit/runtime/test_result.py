"""What a result says, and what a shell would see of it."""

import pytest

from saggar.runtime.result import CAUSES, Result

STATUS = [
    # cause, exit code, signal: status, ok
    ("exit", 0, 0, 0, True),
    ("exit", 7, 0, 7, False),
    ("signal", None, 9, 137, False),
    ("not_found", None, 0, 127, False),
    ("not_executable", None, 0, 126, False),
    ("timeout", None, 0, 6, False),
    ("memory", None, 0, 6, False),
    ("disk", 1, 0, 6, False),
    ("output", None, 0, 6, False),
    ("unenforceable", None, 0, 4, False),
    ("broker_died", None, 0, 70, False),
    ("launcher_died", None, 0, 70, False),
]


@pytest.mark.parametrize(("cause", "code", "number", "status", "ok"), STATUS)
def test_status(cause, code, number, status, ok):
    result = Result(run_id="r", cause=cause, exit_code=code, signal=number)
    assert (result.status, result.ok) == (status, ok)


@pytest.mark.parametrize("cause", sorted(set(CAUSES) - {"exit"}))
def test_only_an_exit_is_ever_a_success(cause):
    # I1: a zero that came with another cause is not the command's word
    assert not Result(run_id="r", cause=cause, exit_code=0).ok


def test_json_has_no_captured_bytes_and_names_refusals():
    result = Result(
        run_id="r", cause="exit", exit_code=0, stdout=b"\xff", refusals=(("host_not_listed", "a.test", 443),)
    )
    out = result.to_json()
    assert not {"stdout", "stderr"} & set(out)
    assert out["refusals"] == [{"reason": "host_not_listed", "host": "a.test", "port": 443}]
    assert list(out) == sorted(out)


def test_a_result_does_not_change():
    with pytest.raises(AttributeError, match="immutable"):
        Result(run_id="r", cause="exit").cause = "signal"
