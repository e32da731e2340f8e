"""Behaviour 16: commits in a linked worktree and in a submodule, made inside, seen by `saggar diff` and brought back by `saggar apply`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import saggar
from saggar.policy.model import LimitsPolicy, Policy, WorkspacePolicy
from saggar.testing.repository import IDENTITY, git, make_repository

SRC = str(Path(__file__).resolve().parents[2] / "src")
EXPORT = "export " + " ".join(f"{k}={v}" for k, v in IDENTITY.items()) + "; set -e; "


@pytest.fixture(autouse=True)
def _own_state(place, monkeypatch):
    monkeypatch.setenv("SAGGAR_STATE_DIR", f"{place}/state")
    monkeypatch.setenv("HOME", f"{place}/home")


def inside(workspace, script, *, mode="copy-on-write", limits=None):
    policy = Policy(workspace=WorkspacePolicy(path=workspace, mode=mode), limits=limits or LimitsPolicy())
    return saggar.run_sync(["sh", "-c", EXPORT + script], policy, timeout_s=60)


def cli(*words, cwd="/"):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": SRC, "HOME": os.environ["HOME"]}
    env["SAGGAR_STATE_DIR"] = os.environ["SAGGAR_STATE_DIR"]
    return subprocess.run(
        [sys.executable, "-P", "-m", "saggar", *words], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture
def repository(place):
    return make_repository(f"{place}/repository")


@pytest.fixture
def linked(place, repository, settle):
    path = f"{place}/linked"
    git("worktree", "add", "-q", "-b", "side", path, cwd=repository)
    settle()
    return path


def test_a_commit_in_a_linked_worktree_comes_back(linked, repository):
    before = git("rev-parse", "side", cwd=repository)
    result = inside(
        linked, "echo two > kept; git commit -qam two; git rev-parse HEAD; git status --porcelain; git stash list"
    )
    assert result.exit_code == 0, result.stderr
    made = result.stdout.decode()
    assert git("rev-parse", "side", cwd=repository) == before
    shown = cli("diff", result.run_id).stdout
    assert f"in the repository {repository}/.git:" in shown
    assert f"+{made}" in shown.partition("in the repository")[2]
    assert f"{repository}/.git/refs/heads/side\n" in cli("diff", result.run_id, "--name-only").stdout
    listed = json.loads(cli("diff", result.run_id, "--json").stdout)
    assert listed["repository"]["path"] == f"{repository}/.git"
    assert "refs/heads/side" in [c["path"] for c in listed["repository"]["changes"]]

    done = cli("apply", result.run_id)
    assert done.returncode == 0, done.stderr
    assert git("rev-parse", "side", cwd=repository) == made
    assert git("status", "--porcelain", cwd=linked) == ""
    assert git("log", "--format=%s", "side", cwd=repository) == "two\none\n"
    assert git("fsck", "--full", "--strict", cwd=repository) == ""
    assert git("reflog", "show", "side", cwd=repository).count("\n") == 2
    assert git("rev-parse", "main", cwd=repository) == before
    assert "applied" in cli("runs").stdout


def test_git_works_in_a_linked_worktree(linked, repository, place):
    """Stash, merge, rebase, a fetch with its packs, a switch, `gc`; and the main directory is as it was."""
    other = f"{linked}/inner-clone"
    before = git("for-each-ref", cwd=repository)
    script = f"""
echo a > a; git add a; git commit -qm a
echo b >> a; git stash -q; git stash pop -q; git commit -qam b
git switch -qc topic HEAD~1; echo c > c; git add c; git commit -qm c; git rebase -q side; git switch -q side; git merge -q topic
git clone -q . {other}; cd {other}; for i in 1 2 3; do echo $i > f$i; git add .; git commit -qm $i; done; cd ..
git -c fetch.unpackLimit=1 fetch -q {other} HEAD; git merge -q FETCH_HEAD; git gc -q; git fsck --no-dangling; git log --format=%s"""
    result = inside(linked, script)
    assert (result.exit_code, result.stdout) == (0, b"3\n2\n1\nc\nb\na\none\n"), result.stderr
    assert git("for-each-ref", cwd=repository) == before
    assert git("status", "--porcelain", cwd=repository) == ""


def test_a_fetched_pack_comes_back(linked, repository, place):
    """It is hashed whole, since git believes a pack's index."""
    script = """
git clone -q . "$HOME/away"; cd "$HOME/away"
for i in 1 2 3 4; do seq $i 2000 > f; git add .; git commit -qm $i; done; cd - > /dev/null
git -c fetch.unpackLimit=1 fetch -q "$HOME/away" HEAD; git merge -q FETCH_HEAD; git rev-parse HEAD"""
    result = inside(linked, script)
    assert result.exit_code == 0, result.stderr
    done = cli("apply", result.run_id)
    assert done.returncode == 0, done.stderr
    assert git("rev-parse", "side", cwd=repository) == result.stdout.decode()
    assert git("fsck", "--full", cwd=repository) == ""
    assert [n for n in os.listdir(f"{repository}/.git/objects/pack") if n.endswith(".pack")]


def test_a_new_branch_comes_back(linked, repository):
    result = inside(linked, "git switch -qc fix/one; echo x > x; git add x; git commit -qm x")
    assert cli("apply", result.run_id).returncode == 0
    assert git("log", "--format=%s", "fix/one", cwd=repository) == "x\none\n"
    assert git("branch", "--show-current", cwd=linked) == "fix/one\n"
    assert git("status", "--porcelain", cwd=linked) == ""
    assert git("log", "--format=%s", "side", cwd=repository) == "one\n"


def test_the_branch_whose_value_is_packed(linked, repository, settle):
    git("pack-refs", "--all", cwd=repository)
    settle()
    result = inside(linked, "echo two > kept; git commit -qam two")
    git("commit", "-q", "--allow-empty", "-m", "beside", cwd=repository)
    assert cli("apply", result.run_id).returncode == 0
    assert git("log", "--format=%s", "side", cwd=repository) == "two\none\n"
    assert git("log", "--format=%s", "main", cwd=repository) == "beside\none\n"


def test_what_the_host_committed_meanwhile_is_not_overwritten(linked, repository):
    result = inside(linked, "echo two > kept; git commit -qam two")
    git("commit", "-q", "--allow-empty", "-m", "mine", cwd=linked)
    mine = git("rev-parse", "side", cwd=repository)
    done = cli("apply", result.run_id)
    assert done.returncode == 3
    assert f"refused `{repository}/.git/refs/heads/side`: host_changed" in done.stderr
    # with a refusal in the repository the workspace is not written either
    assert Path(linked, "kept").read_text() == "one\n"
    assert git("rev-parse", "side", cwd=repository) == mine


def test_parts_are_applied_by_name(linked, repository):
    before = git("rev-parse", "side", cwd=repository)
    result = inside(linked, "echo two > kept; git commit -qam two")
    assert cli("apply", result.run_id, "kept").returncode == 0
    assert Path(linked, "kept").read_text() == "two\n"
    assert git("rev-parse", "side", cwd=repository) == before
    assert cli("apply", result.run_id, f"{repository}/.git").returncode == 0
    again = json.loads(cli("apply", result.run_id, "--json").stdout)
    assert (again["written"], again["repository"]["written"], again["complete"]) == ([], [], True)
    assert git("status", "--porcelain", cwd=linked) == ""


def test_other_branches_come_back_by_name(linked, repository, settle):
    git("branch", "other", cwd=repository)
    settle()
    result = inside(linked, "echo two > kept; git commit -qam two; git branch -qf other side; git tag v1")
    assert result.exit_code == 0, result.stderr
    done = cli("apply", result.run_id)
    assert done.returncode == 3
    assert f"`{repository}/.git/refs/heads/other`: git_other_branch" in done.stderr
    assert f"`{repository}/.git/refs/tags/v1`: git_other_branch" in done.stderr
    named = (
        f"{repository}/.git/refs/tags/v1",
        f"{repository}/.git/refs/heads/other",
        f"{repository}/.git/logs/refs/heads/other",
    )
    done = cli("apply", result.run_id, *(f"--allow-protected={path}" for path in named))
    assert done.returncode == 0, done.stderr
    assert (
        git("rev-parse", "v1", "other", cwd=repository).split()
        == git("rev-parse", "side", "side", cwd=repository).split()
    )


def test_a_commit_in_a_submodule_comes_back(place, repository, settle):
    outer = f"{place}/outer"
    os.mkdir(outer)
    git("init", "-q", "-b", "main", cwd=outer)
    git("submodule", "add", "-q", repository, "sub", cwd=outer)
    settle()
    result = inside(f"{outer}/sub", "echo two > kept; git commit -qam two; git config user.name evil")
    assert result.exit_code == 0, result.stderr
    done = cli("apply", result.run_id)
    assert (done.returncode, "git_config" in done.stderr) == (3, True)
    assert cli("apply", result.run_id, "--skip-refused").returncode == 3
    assert git("log", "--format=%s", cwd=f"{outer}/sub") == "two\none\n"
    assert git("fsck", cwd=f"{outer}/sub") == ""


def test_a_layer_in_memory_keeps_the_repository_as_well(linked, repository):
    from saggar.isolation.workspace_host import tmpfs_has_user_xattrs

    if not tmpfs_has_user_xattrs():
        pytest.skip("tmpfs has no user extended attributes on this kernel (Linux 6.6)")
    limits = LimitsPolicy(disk_bytes=64 << 20)
    policy = Policy(workspace=WorkspacePolicy(path=linked), limits=limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saggar.isolation.workspace_host._takes_user_xattrs", lambda _fd: False)
        patch.setattr("saggar.isolation.workspace_host.tmpfs_has_user_xattrs", lambda: True)
        result = saggar.run_sync(["sh", "-c", EXPORT + "echo two > kept; git commit -qam two"], policy, timeout_s=60)
    assert (result.exit_code, result.workspace["layer"]) == (0, "memory"), result.stderr
    assert cli("apply", result.run_id).returncode == 0
    assert git("log", "--format=%s", "side", cwd=repository) == "two\none\n"


@pytest.mark.parametrize("mode", ["read-only", "read-write"])
def test_where_changes_are_not_kept_apart_the_repository_is_read_only(linked, repository, mode):
    result = inside(linked, "git log --format=%s; git commit -q --allow-empty -m two", mode=mode)
    assert result.stdout == b"one\n"
    assert b"Read-only file system" in result.stderr
    assert [c for c in result.enforcement["caveats"] if "is shown read-only" in c]


def test_the_disk_limit_counts_the_repository(linked):
    result = inside(
        linked, f"cat /dev/zero > {linked}/../repository/.git/filler", limits=LimitsPolicy(disk_bytes=16 << 20)
    )
    assert result.cause == "disk"
