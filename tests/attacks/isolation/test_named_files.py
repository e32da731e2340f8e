"""Names in the workspace that the host's own commands write and read: a cell left a link, or a file of a run's name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = str(Path(__file__).resolve().parents[3] / "src")


@pytest.fixture
def saggar(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "home").mkdir()

    def call(*words, tmp=None):
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "PYTHONPATH": SRC,
            "SAGGAR_STATE_DIR": str(tmp_path / "state"),
            **({"TMPDIR": tmp} if tmp else {}),
        }
        return subprocess.run(
            [sys.executable, "-m", "saggar", *words], cwd=work, env=env, capture_output=True, timeout=90, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    call.work = work
    return call


def cell(saggar, script):
    done = saggar("run", "--workspace", ".:read-write", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    return json.loads(saggar("runs", "--json").stdout)[-1]["id"]


def test_a_graph_is_not_written_through_a_link(saggar, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    run = cell(saggar, f"ln -s {victim} graph.svg; ln -s {tmp_path} d; mkfifo pipe")
    for name in ("graph.svg", "d/victim", "pipe"):
        done = saggar("plan", "trace", run, "--svg", name)
        assert done.returncode == 2, (name, done.stderr)
    assert victim.read_text() == "untouched"
    assert saggar("plan", "trace", run, "--svg", "good.svg").returncode == 0
    assert "<svg" in (saggar.work / "good.svg").read_text()


def test_a_file_of_a_runs_name_is_not_its_log(saggar):
    run = cell(saggar, "true")
    (saggar.work / run).write_text("planted\n")
    for words in (["audit", "overprovision", "--json"], ["plan", "trace"]):
        done = saggar(*words, run)
        assert done.returncode == 0, done.stderr
        assert run.encode() in done.stdout or words[0] == "plan"
    (saggar.work / "other.jsonl").write_text("planted\n")
    assert saggar("audit", "overprovision", "other.jsonl").returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ["policy", "tighten", "--policy"],
        ["chat", "--tools", "json", "--base", "http://x.test", "--model", "m", "--policy"],
    ],
)
def test_a_policy_is_not_read_through_a_link(saggar, tmp_path, words):
    (tmp_path / "secret").write_text("secret = 1\n")
    cell(saggar, f"ln -s {tmp_path}/secret saggar.toml")
    done = saggar(*words, "saggar.toml")
    assert done.returncode == 2
    assert b"a symbolic link in the workspace leads to this policy" in done.stderr, done.stderr


def test_learning_keeps_its_result_where_the_command_cannot_write(saggar):
    """With TMPDIR in a read-write workspace the command could have replaced the file that names the run."""
    (saggar.work / "tmp").mkdir()
    done = saggar(
        "policy",
        "learn",
        "--workspace",
        ".:read-write",
        "--",
        "sh",
        "-c",
        "find tmp -type f",
        tmp=str(saggar.work / "tmp"),
    )
    assert (done.returncode, done.stdout) == (0, b"# no host was refused\n"), done.stderr
