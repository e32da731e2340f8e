"""The workspace through `saggar run`: what comes back, what is left, in every mode. Behaviours 16 to 18, 20 and 21."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SRC = str(Path(__file__).resolve().parents[2] / "src")


@pytest.fixture
def saggar(place, workspace):
    """Call the command line in the workspace; gives the finished process."""

    def call(*args, code=0, cwd=workspace):
        done = subprocess.run(
            [sys.executable, "-m", "saggar", *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=cwd,
            env={
                "PATH": os.environ["PATH"],
                "HOME": f"{place}/home",
                "PYTHONPATH": SRC,
                "SAGGAR_STATE_DIR": f"{place}/state",
            },
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done

    os.makedirs(f"{place}/home")
    return call


def latest(saggar):
    return json.loads(saggar("runs", "--json").stdout)[-1]["id"]


def put(path, text):
    Path(path).write_text(text)


def tree(top):
    return sorted(str(p.relative_to(top)) for p in Path(top).rglob("*"))


def git(*words, cwd):
    identity = {f"GIT_{who}_{what}": "a@a.test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", *words], cwd=cwd, env=os.environ | identity, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_changes_until_apply(saggar, workspace, place):
    put(f"{workspace}/file", "before\n")
    saggar(
        "run",
        "--",
        "sh",
        "-c",
        "echo after > file; echo new > new; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit",
    )
    assert tree(workspace) == ["file"]
    assert sorted(os.listdir(place)) == ["home", "state", "workspace"]
    assert os.listdir(f"{place}/home") == []
    diff = saggar("diff").stdout
    assert "-before\n+after\n" in diff
    refused = saggar("apply", latest(saggar), code=3)
    assert "refused `.git/hooks`: git_hooks" in refused.stderr
    saggar("apply", latest(saggar), "--skip-refused", code=3)
    assert tree(workspace) == ["file", "new"]
    assert Path(f"{workspace}/file").read_text() == "after\n"
    log = Path(f"{place}/state/runs/{latest(saggar)}/audit.jsonl").read_text()
    assert '"kind":"workspace.refused"' in log
    saggar("log", "verify", latest(saggar))
    saggar("discard", "--all")
    assert os.listdir(f"{place}/state/runs") == []


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_commit_made_inside_comes_back(saggar, workspace):
    git("init", "-q", ".", cwd=workspace)
    put(f"{workspace}/a", "a")
    git("add", ".", cwd=workspace)
    git("commit", "-qm", "one", cwd=workspace)
    saggar(
        "run", "--env", "GIT_CONFIG_COUNT=2", "--env", "GIT_CONFIG_KEY_0=user.name", "--env", "GIT_CONFIG_VALUE_0=agent",
        "--env", "GIT_CONFIG_KEY_1=user.email", "--env", "GIT_CONFIG_VALUE_1=a@a.test", "--",
        "sh", "-ec", "git switch -qc work; echo b > b; git add .; git commit -qm two; git gc -q",
    )  # fmt: skip
    assert git("log", "--format=%s", cwd=workspace) == "one\n"
    assert "git's own data" in saggar("diff").stdout
    saggar("apply", latest(saggar))
    assert git("log", "--format=%s", cwd=workspace) == "two\none\n"
    assert git("status", "--porcelain", cwd=workspace) == ""
    git("fsck", "--full", cwd=workspace)


def test_modes(saggar, workspace):
    put(f"{workspace}/file", "before\n")
    done = saggar("run", "--workspace", ".:read-only", "--", "sh", "-c", "cat file; echo x > file", code=2)
    assert done.stdout == "before\n"
    assert "Read-only" in done.stderr
    saggar("run", "--workspace", ".:read-write", "--", "sh", "-c", "echo after > file; mkdir made")
    assert Path(f"{workspace}/file").read_text() == "after\n"
    assert os.stat(f"{workspace}/made").st_uid == os.geteuid()
    done = saggar("run", "--workspace", ".:none", "--", "sh", "-c", f"ls {workspace}; pwd; ls")
    assert done.stdout == "/home/agent\n"
    with pytest.raises(AssertionError, match="has a `read-write` workspace"):
        saggar("diff", json.loads(saggar("runs", "--json").stdout)[-2]["id"])


@pytest.mark.parametrize("mode", ["copy-on-write", "read-only", "read-write"])
def test_a_named_policy_of_the_workspace_is_read_only(saggar, workspace, mode):
    os.makedirs(f"{workspace}/conf")
    put(f"{workspace}/conf/saggar.toml", "[limits]\ntasks = 100\n")
    tries = [
        "echo x > conf/saggar.toml",
        "rm conf/saggar.toml",
        "mv conf/saggar.toml x",
        "mv conf other",
        "echo x > y && mv -T y conf/saggar.toml",
        "chmod 777 conf/saggar.toml",
        "ln -f y conf/saggar.toml",
    ]
    script = "; ".join(f"({t}) 2>/dev/null && echo done {i}" for i, t in enumerate(tries)) + "; cat conf/saggar.toml"
    done = saggar("run", "--policy", "conf/saggar.toml", "--workspace", f".:{mode}", "--", "sh", "-c", script)
    assert done.stdout == "[limits]\ntasks = 100\n"
    assert Path(f"{workspace}/conf/saggar.toml").read_text() == "[limits]\ntasks = 100\n"


def test_what_the_host_changed_meanwhile(saggar, workspace):
    put(f"{workspace}/file", "before\n")
    saggar("run", "--", "sh", "-c", "echo ours > file; echo ours > both")
    put(f"{workspace}/file", "theirs\n")
    put(f"{workspace}/both", "theirs\n")
    done = saggar("apply", latest(saggar), code=3)
    assert "refused `file`: host_changed" in done.stderr
    assert "refused `both`: host_created" in done.stderr
    saggar("apply", latest(saggar), "file", "--overwrite-host-changes")
    assert Path(f"{workspace}/file").read_text() == "ours\n"
    assert Path(f"{workspace}/both").read_text() == "theirs\n"


def test_two_runs_on_one_workspace(saggar, workspace):
    put(f"{workspace}/file", "before\n")
    saggar("run", "--", "sh", "-c", "echo one > file")
    first = latest(saggar)
    saggar("run", "--", "sh", "-c", "echo two > file; echo two > other")
    second = latest(saggar)
    saggar("apply", first)
    done = saggar("apply", second, code=3)
    assert "refused `file`: host_changed" in done.stderr
    saggar("apply", second, "other")
    assert Path(f"{workspace}/file").read_text() == "one\n"


def test_a_symlinked_workspace_is_said(saggar, workspace, place):
    os.symlink("workspace", f"{place}/link")
    done = saggar("run", "--workspace", f"{place}/link", "--", "pwd")
    # inside, /var/tmp is /tmp
    assert done.stdout == f"{workspace}\n".removeprefix("/var")
    assert f"the workspace `{place}/link` is `{workspace}`" in done.stderr


@pytest.mark.parametrize("where", ["/", "HOME", "/nonexistent", "/etc/passwd"])
def test_workspaces_that_are_none(saggar, place, where):
    done = saggar("run", "--workspace", where.replace("HOME", f"{place}/home"), "--", "true", code=2)
    assert done.stderr.startswith("saggar: the workspace")
    assert len(done.stderr.splitlines()) == 1
    assert os.listdir(f"{place}/state/runs") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="the enforced kind of all limits needs cgroups, here root's")
def test_a_layer_in_memory_comes_back_too(saggar, workspace, place):
    put(f"{place}/policy.toml", '[limits]\nrequire = "enforced"\ndisk = "16MiB"\n')
    put(f"{workspace}/gone", "x")
    os.makedirs(f"{workspace}/dir/sub")
    script = "rm -r gone dir; mkdir dir; echo in > dir/in; ln -s in dir/link; dd if=/dev/zero of=big bs=1M count=64 2>/dev/null; stat -c %s big; rm big"
    done = saggar("run", "--policy", f"{place}/policy.toml", "--", "sh", "-c", script, code=0)
    assert 0 < int(done.stdout) < 17 << 20
    saggar("apply", latest(saggar))
    assert tree(workspace) == ["dir", "dir/in", "dir/link"]


def test_an_unreadable_workspace(saggar, place):
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    os.mkdir(f"{place}/closed", 0o000)
    done = saggar("run", "--workspace", f"{place}/closed", "--", "true", code=2)
    assert "cannot be read by user" in done.stderr


@pytest.fixture
def small_disk(place):
    """A file system of 200 KiB, mounted for one test."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    path = f"{place}/small"
    os.mkdir(path)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k,nr_inodes=20,mode=755", "none", path], check=True)
    yield path
    subprocess.run(["umount", path], check=True)


def test_no_space_for_apply_says_where_and_goes_on(saggar, small_disk):
    run = ["sh", "-c", "for i in 1 2 3 4 5; do head -c 60000 /dev/zero > f$i; done"]
    saggar("run", "--workspace", small_disk, "--", *run)
    done = saggar("apply", latest(saggar), code=1)
    assert done.stderr == "saggar: `f4` could not be written: no space left on device; apply again to go on\n"
    assert done.stdout.endswith("3 paths written\n")
    assert tree(small_disk) == ["f1", "f2", "f3"]
    subprocess.run(["mount", "-o", "remount,size=1m", small_disk], check=True)
    assert saggar("apply", latest(saggar)).stdout == "A f4\nA f5\n2 paths written\n"
    assert tree(small_disk) == ["f1", "f2", "f3", "f4", "f5"]


@pytest.mark.parametrize("limit", [f"nr_inodes={n}" for n in range(2, 12)] + [f"size={n}k" for n in (4, 8, 12, 16, 20)])
def test_no_space_for_a_run_is_one_line(saggar, workspace, small_disk, limit):
    """However far the start comes before the state directory is full, the error is a line, and nothing ran."""
    subprocess.run(["mount", "-o", f"remount,{limit}", small_disk], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "saggar", "run", "--", "sh", "-c", "echo ran"],
        cwd=workspace,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": SRC, "SAGGAR_STATE_DIR": f"{small_disk}/state"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        assert done.stdout == ""
        assert done.stderr.startswith("saggar: ")
        assert len(done.stderr.splitlines()) == 1
        assert "pace" in done.stderr
    else:
        assert done.stdout == "ran\n"
