import json
import os

import pytest

from saggar.cli import main as cli
from saggar.cli.workspace import main
from saggar.core.errors import UsageError
from saggar.isolation.state_host import open_state


def put(path, text="text\n", mode=None):
    with open(path, "w") as file:
        file.write(text)
    if mode:
        os.chmod(path, mode)


@pytest.fixture
def run(contained, workspace, state, monkeypatch):
    """A finished run with one change of most kinds, two of them protected."""
    monkeypatch.setenv("SAGGAR_STATE_DIR", state.path)
    monkeypatch.chdir(workspace)
    put("kept.txt", "one\ntwo\n")
    put("gone.txt")

    def command():
        put("kept.txt", "one\nTWO\n")
        os.unlink("gone.txt")
        put("tool.sh", "#!/bin/sh\n", 0o755)
        put("red\x1b[31m", "\x1b[2Jcleared\n")
        put("data.bin", "\0\1")
        os.symlink("kept.txt", "link")
        os.makedirs(".vscode")
        put(".vscode/tasks.json", "{}\n")
        os.symlink("/etc/passwd", "out")

    done = contained(command)
    assert (done.status, done.error) == (0, "")
    done.run.update(argv=["sh", "-c", "x\x1b"])
    done.run.end("exit")
    done.run.close()
    return done.run.id


def said(capsys, *argv):
    code = main(list(argv))
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    return code, out, err


DIFF = """\
A .vscode/
new file mode 100644
--- /dev/null
+++ b/.vscode/tasks.json
@@ -0,0 +1 @@
+{}
data.bin: binary, 0 -> 2 bytes
--- a/gone.txt
+++ /dev/null
@@ -1 +0,0 @@
-text
--- a/kept.txt
+++ b/kept.txt
@@ -1,2 +1,2 @@
 one
-two
+TWO
new file mode 120000
--- /dev/null
+++ b/link
@@ -0,0 +1 @@
+link to kept.txt
new file mode 120000
--- /dev/null
+++ b/out
@@ -0,0 +1 @@
+link to /etc/passwd
--- /dev/null
+++ b/red\\x1b[31m
@@ -0,0 +1 @@
+\\x1b[2Jcleared
new file mode 100755
--- /dev/null
+++ b/tool.sh
@@ -0,0 +1 @@
+#!/bin/sh
"""
STAT = """\
A .vscode/
A .vscode/tasks.json
A data.bin
D gone.txt
M kept.txt (8 -> 8 bytes)
A link -> kept.txt
A out -> /etc/passwd
A red\\x1b[31m
A tool.sh
9 paths changed
"""


def test_diff(run, capsys):
    assert said(capsys, "diff", run) == (0, DIFF.replace("new file mode 100644\n", ""), "")
    assert said(capsys, "diff", run, "--stat") == (0, STAT, "")
    code, out, err = said(capsys, "diff", run, "--name-only")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        ".vscode", ".vscode/tasks.json", "data.bin", "gone.txt", "kept.txt", "link", "out", "red\\x1b[31m", "tool.sh",
    ]  # fmt: skip


def test_diff_of_the_latest_run_here_and_of_some_paths(run, capsys, monkeypatch, place):
    assert said(capsys, "diff", "--stat") == (0, STAT, "")
    assert said(capsys, "diff", "--stat", "--", "link", ".vscode") == (
        0,
        "A .vscode/\nA .vscode/tasks.json\nA link -> kept.txt\n3 paths changed\n",
        "",
    )
    monkeypatch.chdir(place)
    with pytest.raises(UsageError, match="no run of this directory is kept"):
        main(["diff"])


def test_diff_as_json(run, capsys):
    _, out, _ = said(capsys, "diff", run, "--json")
    value = json.loads(out)
    assert value["run"] == run
    assert value["refused"] == []
    kept = next(c for c in value["changes"] if c["path"] == "kept.txt")
    assert kept == {
        "path": "kept.txt",
        "kind": "modified",
        "before": {"type": "file", "mode": "0644", "size": 8},
        "after": {"type": "file", "mode": "0644", "size": 8},
    }


def test_apply_refuses_all_for_one_then_takes_what_is_named(run, capsys, workspace):
    code, out, err = said(capsys, "apply", run)
    assert code == 3
    assert out == "0 paths written, 3 refused (name paths to apply, or give `--skip-refused`)\n"
    hint = "(protected: name it with `--allow-protected` if you want it)"
    assert err == (
        f"saggar: refused `.vscode`: editor_settings, with 1 path in it {hint}\n"
        f"saggar: refused `out`: symlink_leaves_workspace {hint}\n"
    )
    assert sorted(os.listdir(workspace)) == ["gone.txt", "kept.txt"]
    assert (
        said(capsys, "apply", run, "kept.txt", "--dry-run")[1]
        == "M kept.txt (8 -> 8 bytes)\n1 paths would be written\n"
    )
    assert open("kept.txt").read() == "one\ntwo\n"
    assert said(capsys, "apply", run, "kept.txt", f"{workspace}/gone.txt") == (
        0,
        "D gone.txt\nM kept.txt (8 -> 8 bytes)\n2 paths written\n",
        "",
    )
    assert open("kept.txt").read() == "one\nTWO\n"
    code, out, _ = said(capsys, "apply", run, "--skip-refused", "--allow-protected", ".vscode")
    assert code == 3
    assert out.endswith("6 paths written, 1 refused\n")
    assert said(capsys, "diff", run, "--name-only")[1] == "out\n"
    assert said(capsys, "apply", run, "--allow-protected=out")[0] == 0
    with pytest.raises(UsageError, match="it was applied"):
        main(["diff", run])
    assert os.readlink("out") == "/etc/passwd"
    assert "applied" in said(capsys, "runs")[1]


def test_apply_as_json(run, capsys):
    code, out, _ = said(capsys, "apply", run, "tool.sh", "out", "--skip-refused", "--json")
    assert code == 3
    value = json.loads(out)
    assert [c["path"] for c in value["written"]] == ["tool.sh"]
    assert [(r["path"], r["reason"]) for r in value["refused"]] == [("out", "symlink_leaves_workspace")]
    assert value["complete"] is False


def test_runs_and_discard(run, capsys, state):
    _, out, _ = said(capsys, "runs")
    assert out.startswith(f"{run}  ended   exit              changes kept")
    assert out.endswith("sh -c x\\x1b\n")
    row = json.loads(said(capsys, "runs", "--json")[1])[0]
    assert (row["id"], row["state"], row["changes_kept"], row["mode"]) == (run, "ended", True, "copy-on-write")
    alive = state.new_run()
    code, out, err = said(capsys, "discard", "--all")
    assert (code, out, err) == (3, "1 runs discarded\n", f"saggar: the run `{alive.id}` is still alive\n")
    assert open_state({"SAGGAR_STATE_DIR": state.path}).names() == [alive.id]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["apply"], "no run was given"),
        (["apply", "RUN", "../x"], "is outside the workspace"),
        (["apply", "RUN", "/etc"], "is outside the workspace"),
        (["apply", "RUN", "nothing"], "changed nothing at `nothing`"),
        (["apply", "RUN", "--allow-protected"], "needs a value"),
        (["apply", "RUN", "--allow-protected", "."], "needs a path below"),
        (["apply", "RUN", "--force"], "unknown option"),
        (["apply", "../../etc"], "is not a run id"),
        (["diff", "a", "b"], "more than one run"),
        (["discard"], "give runs, or"),
        (["discard", "RUN", "--all"], "give runs, or"),
    ],
)
def test_wrong_words(run, argv, message):
    with pytest.raises(UsageError, match=message):
        main([run if w == "RUN" else w for w in argv])


def test_a_run_of_another_boot_must_be_named(run, capsys, state):
    opened = state.open_run(run)
    opened.update(boot="another")
    opened.close()
    with pytest.raises(UsageError, match="the machine restarted"):
        main(["apply", run, "tool.sh"])
    assert said(capsys, "apply", run, "tool.sh", "--after-reboot")[0] == 0


def test_a_killed_applys_leftovers_go_with_the_run(run, capsys, state, workspace):
    opened = state.open_run(run)
    with open(f"{opened.path}/applying", "wb") as file:
        file.write(b"temporary\0.saggar-12345678-0\0temporary\0../outside\0temporary\0nowhere/.saggar-1-2\0")
    put(".saggar-12345678-0")
    put(".saggar-other")
    assert said(capsys, "discard", run) == (0, "1 runs discarded\n", "")
    assert sorted(os.listdir(workspace)) == [".saggar-other", "gone.txt", "kept.txt"]


def test_help_and_the_dispatcher(capsys, monkeypatch, place):
    for name in ("runs", "diff", "apply", "discard"):
        assert main([name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: saggar {name}")
    monkeypatch.setenv("SAGGAR_STATE_DIR", f"{place}/state")
    assert cli.main(["diff", "r2"]) == 2
    assert "no run `r2`" in capsys.readouterr().err
