"""The dispatch table: what is printed where, and with which exit code."""

import pytest

from saggar.cli import main as cli
from saggar.core.errors import Unenforceable, UsageError

CASES = [
    # argv, exit code, stdout has, stderr has
    ([], 2, "", "usage: saggar"),
    (["--help"], 0, "usage: saggar", ""),
    (["--version"], 0, "saggar 0.", ""),
    (["rum"], 2, "", "unknown command `rum` (hint: did you mean `run`?)"),
    (["zzzzzz"], 2, "", "unknown command `zzzzzz` (hint: see `saggar --help`)"),
]


@pytest.mark.parametrize(("argv", "code", "out", "err"), CASES)
def test_dispatch(argv, code, out, err, capsys):
    assert cli.main(argv) == code
    got = capsys.readouterr()
    assert out in got.out
    assert err in got.err
    assert bool(got.out) == bool(out)
    assert bool(got.err) == bool(err)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UsageError("bad key `x`", file="f.toml", line=3, hint="did you mean `y`"), 2, "saggar: f.toml:3: bad key `x`"),
        (Unenforceable("no user namespaces", cause="sysctl", remedy="set it"), 4, "remedy: set it"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_exit_codes(error, code, text, monkeypatch, capsys):
    def boom(_argv):
        raise error

    monkeypatch.setattr(cli, "_load", lambda _module: boom)
    assert cli.main(["run"]) == code
    assert text in capsys.readouterr().err
