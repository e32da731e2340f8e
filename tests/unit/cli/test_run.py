"""What `saggar run` says at the end."""

import pytest

from saggar.cli.run import _say
from saggar.runtime.result import Result

MIB = 1 << 20
HINT = (
    "on this host Java and Node size their heaps by the machine: `--env JDK_JAVA_OPTIONS=-XX:MaxRAM=209715200`,"
    " `--env NODE_OPTIONS=--max-old-space-size=100`"
)
ENDS = [
    # cause, how the limit was held, the line
    ("memory", "enforced", "the cell was ended: the memory limit of 209715200 was reached"),
    ("memory", "watchdog", f"the cell was ended: the memory limit of 209715200 was reached ({HINT})"),
    ("tasks", "enforced", "the cell was ended: the tasks limit of 209715200 was reached"),
    ("timeout", "enforced", "the cell was ended: its time was over"),
    ("broker_died", "", "the cell was ended: broker_died"),
]


@pytest.mark.parametrize(("cause", "held", "line"), ENDS)
def test_one_line_says_what_ended_the_run(capsys, cause, held, line):
    limits = {cause: {"allowed": 200 * MIB, "held": held}}
    _say(Result(run_id="r", cause=cause, limits=limits), quiet=False)
    assert capsys.readouterr().err == f"saggar: {line}\n"
