"""`saggar log`: filters, following, damage, harmless output."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from saggar.audit.sink_host import AuditLog
from saggar.cli.main import main

SOURCE = os.path.dirname(os.path.dirname(sys.modules["saggar.audit"].__file__ or "")).removesuffix("/saggar")


@pytest.fixture
def run(tmp_path, monkeypatch):
    from saggar.isolation.state_host import open_state

    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    made = open_state(os.environ).new_run()
    yield made
    made.close()


@pytest.fixture
def log(run):
    audit = AuditLog(f"{run.path}/audit.jsonl", run.id, wall=lambda: 1_800_000_000.5)
    audit.append("run.start", layer="L1", effect="allow", reason="requested", detail={"argv": ["true"]})
    audit.append(
        "egress.decision", layer="L2", effect="deny", reason="host_not_listed", detail={"host": "a\x1b[2J.test"}
    )
    audit.append("run.end", layer="L1", reason="exit")
    return audit


def call(capsys, *argv):
    code = main(["log", *argv])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_latest_run_is_printed(capsys, run, log):
    code, out, err = call(capsys)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        '08:00:00.500 L1       allow run.start requested argv=["true"]',
        '08:00:00.500 L2       deny  egress.decision host_not_listed host="a\\u001b[2J.test"',
        "08:00:00.500 L1             run.end exit",
    ]


@pytest.mark.parametrize(
    ("flags", "seqs"),
    [([], [0, 1, 2]), (["--layer", "l2"], [1]), (["--effect", "deny"], [1]), (["--effect", "ask"], [])],
)
def test_filters_and_json(capsys, run, log, flags, seqs):
    code, out, _ = call(capsys, run.id[:9], "--json", *flags)
    assert code == 0
    assert [json.loads(line)["seq"] for line in out.splitlines()] == seqs


def test_damage_is_told(capsys, run, log):
    path = f"{run.path}/audit.jsonl"
    data = open(path, "rb").read()
    with open(path, "wb") as f:
        f.write(data.replace(b"deny", b"allo"))
    code, out, err = call(capsys)
    assert code == 1
    assert "(damaged)" in out
    assert ":2: edited: record 1 does not match its hash" in err


def test_verify(capsys, run, log):
    head = log.head()[1]
    code, out, _ = call(capsys, "verify")
    assert code == 0
    assert out == f"sound: 3 records, head {head} (no head to compare: a cut end would not show)\n"
    code, out, _ = call(capsys, "verify", run.id, "--head", head.upper())
    assert code == 0
    assert "(head found)" in out
    path = f"{run.path}/audit.jsonl"
    code, out, _ = call(capsys, "verify", path, "--json")
    assert code == 0
    assert json.loads(out)["task"] == run.id
    os.truncate(path, open(path, "rb").read().rindex(b'{"detail"'))
    code, out, err = call(capsys, "verify", path, "--head", head)
    assert code == 1
    assert ":2: truncated: the known head" in err


def test_the_head_of_the_runs_end_is_looked_for(capsys, run, log):
    run.end("exit", head=log.head()[1])
    log.append("workspace.apply", layer="L1")
    code, out, _ = call(capsys, "verify", run.id)
    assert code == 0
    assert "(head found)" in out
    path = f"{run.path}/audit.jsonl"
    with open(path, "rb") as f:
        lines = f.readlines()
    with open(path, "wb") as f:
        f.writelines(lines[:2])
    code, _, err = call(capsys, "verify", run.id)
    assert code == 1
    assert ":2: truncated:" in err


def test_foreign_log_in_a_run(capsys, run):
    AuditLog(f"{run.path}/audit.jsonl", "other").append("run.start", layer="L1")
    code, _, err = call(capsys, "verify", run.id)
    assert code == 1
    assert "foreign_task" in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nothing"], "`nothing` is not a run id"),
        (["verify", "--head", "x"], "`--head`: `x` is not a hash"),
        (["verify", "/nowhere/x"], "no such file"),
        (["verify", "/"], "not a regular file"),
    ],
)
def test_wrong_arguments(capsys, run, argv, message):
    code, out, err = call(capsys, *argv)
    assert (code, out) == (2, "")
    assert message in err


def test_no_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "none"))
    code, _, err = call(capsys)
    assert code == 2
    assert "no runs are kept" in err


def test_torn_line_is_a_note(capsys, run, log):
    with open(f"{run.path}/audit.jsonl", "ab") as f:
        f.write(b'{"detail":{"a')
    assert call(capsys, "verify")[0] == 1
    log.append("run.end", layer="L1")
    code, out, _ = call(capsys, "verify")
    assert code == 0
    assert "note: line 4: torn: a writer died after 13 bytes; line 5 names them" in out


@pytest.mark.parametrize("how", ["ended", "died"])
def test_follow_until_the_run_ends(run, log, how):
    code = "import sys; sys.path.insert(0, sys.argv[1]); from saggar.cli.main import main; sys.exit(main(['log', '--follow', '--json']))"
    p = subprocess.Popen([sys.executable, "-c", code, SOURCE], stdout=subprocess.PIPE)
    got = [json.loads(p.stdout.readline())["seq"] for _ in range(3)]
    for seq in range(3, 6):
        log.append("limit.sample", layer="L1")
        got.append(json.loads(p.stdout.readline())["seq"])
    log.append("run.end", layer="L1")
    if how == "ended":
        run.end("exit")
    else:
        os.close(run.lock_fd)
        run.lock_fd = -1
    rest, _ = p.communicate(timeout=30)
    got += [json.loads(line)["seq"] for line in rest.splitlines()]
    assert got == list(range(7))
    assert p.returncode == 0
