"""Behaviours of docs/BEHAVIOURS.md that no other end-to-end test covers, on the real kernel."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import saggar
from saggar.policy.model import EnvironmentPolicy, IsolationPolicy, LimitsPolicy, Policy, WorkspacePolicy
from saggar.testing.repository import IDENTITY, git, make_repository

SRC = str(Path(__file__).resolve().parents[2] / "src")


@pytest.fixture(autouse=True)
def _own_state(place, monkeypatch):
    monkeypatch.setenv("SAGGAR_STATE_DIR", f"{place}/state")
    monkeypatch.setenv("HOME", f"{place}/home")


def inside(workspace, command, *, read=(), mode="copy-on-write"):
    policy = Policy(workspace=WorkspacePolicy(path=workspace, mode=mode), isolation=IsolationPolicy(read=read))
    return saggar.run_sync(command, policy, timeout_s=60)


@pytest.fixture
def repository(place):
    return make_repository(f"{place}/repository")


def test_a_stopped_cell_blocks_neither_another_nor_its_own_end(workspace):
    """Behaviour 6."""

    async def both():
        policy = Policy(workspace=WorkspacePolicy(path=workspace))
        async with await saggar.spawn(["sh", "-c", "echo up; kill -STOP $$; sleep 3212"], policy) as stuck:
            assert await stuck.stdout.readline() == b"up\n"
            other = await saggar.run(["echo", "free"], policy, timeout_s=20)
            stuck.kill()
            return other, await asyncio.wait_for(stuck.wait(), 20)

    other, ended = asyncio.run(both())
    assert other.stdout == b"free\n"
    assert ended.cause == "cancelled"


WRITES = """
import os
for place in (os.getcwd(), "/tmp", "/dev/shm", os.environ["HOME"]):
    for n in range(3):
        with open(f"{place}/.new", "w") as f:
            f.write(str(n)); f.flush(); os.fsync(f.fileno())
        os.replace(f"{place}/.new", f"{place}/kept")
        lock = os.open(f"{place}/kept.lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.close(lock); os.unlink(f"{place}/kept.lock")
    print(open(f"{place}/kept").read(), [n for n in (".new", "kept.lock") if os.path.lexists(f"{place}/{n}")])
"""


@pytest.mark.parametrize("mode", ["copy-on-write", "read-write"])
def test_files_are_replaced_in_one_step_in_every_place_that_may_be_written(workspace, mode):
    """Behaviour 15."""
    Path(workspace, "kept").write_text("before")
    os.chmod(workspace, 0o777)
    result = inside(workspace, ["python3", "-c", WRITES], mode=mode)
    assert result.stdout == b"2 []\n" * 4, result.stderr


def test_a_granted_file_that_the_host_replaces_stays_readable(place, workspace):
    """Behaviour 15: the cell keeps the file that it was given; the next cell sees the new one."""
    settings = f"{place}/settings"
    Path(settings).write_text("old\n")
    Path(f"{settings}.new").write_text("new\n")
    policy = Policy(workspace=WorkspacePolicy(path=workspace), isolation=IsolationPolicy(read=(settings,)))

    async def replace():
        async with await saggar.spawn(["sh", "-c", f"echo up; read _; cat {settings}"], policy) as cell:
            assert await cell.stdout.readline() == b"up\n"
            os.replace(f"{settings}.new", settings)
            cell.stdin.write(b"\n")
            return await cell.stdout.readline()

    assert asyncio.run(replace()) == b"old\n"
    assert saggar.run_sync(["cat", settings], policy).stdout == b"new\n"


def test_a_worktree_with_its_own_configuration(place, repository):
    """Behaviour 16: `extensions.worktreeConfig`."""
    linked = f"{place}/linked"
    git("config", "extensions.worktreeConfig", "true", cwd=repository)
    git("worktree", "add", "-q", "-b", "side", linked, cwd=repository)
    git("config", "--worktree", "user.name", "of the worktree", cwd=linked)
    assert inside(linked, ["git", "config", "user.name"]).stdout == b"of the worktree\n"


def test_a_commit_in_a_repository_with_linked_hooks_and_a_submodule(place, repository):
    """Behaviour 16: hooks that are a symbolic link within the workspace, a submodule, and git's own lock files."""
    outer = f"{place}/outer"
    os.mkdir(outer)
    git("init", "-q", "-b", "main", cwd=outer)
    git("submodule", "add", "-q", repository, "sub", cwd=outer)
    os.mkdir(f"{outer}/hooks")
    Path(outer, "hooks", "pre-commit").write_text("#!/bin/sh\necho hook ran >&2\n")
    os.chmod(f"{outer}/hooks/pre-commit", 0o755)
    Path(outer, ".git", "hooks").rename(f"{place}/samples")
    os.symlink("../hooks", f"{outer}/.git/hooks")
    names = " ".join(f"{k}={v}" for k, v in IDENTITY.items())
    script = f"""set -e; export {names}
cd sub; echo two > kept; git commit -qam two; cd ..
git add -A; git commit -qm outer; git config user.name x; git submodule status; git status --porcelain; git fsck"""
    result = inside(outer, ["sh", "-c", script])
    assert result.status == 0, result.stderr
    assert b"hook ran" in result.stderr
    assert result.stdout.startswith(b" ") and b" sub (heads/main)" in result.stdout


def test_a_submodule_as_workspace(place, repository):
    """Behaviour 16."""
    outer = f"{place}/outer"
    os.mkdir(outer)
    git("init", "-q", "-b", "main", cwd=outer)
    git("submodule", "add", "-q", repository, "sub", cwd=outer)
    assert inside(f"{outer}/sub", ["git", "log", "--format=%s"]).stdout == b"one\n"


def test_a_forged_link_shows_nothing(place, repository, workspace):
    """Behaviours 16 and 37: a cell can write `.git`; the next cell does not follow it to where nobody names the workspace."""
    secret = f"{place}/secret"
    os.makedirs(f"{secret}/objects")
    os.mkdir(f"{secret}/refs")
    Path(secret, "HEAD").write_text("ref: refs/heads/main\n")
    for target in (secret, f"{repository}/.git"):
        Path(workspace, ".git").write_text(f"gitdir: {target}\n")
        result = inside(workspace, ["sh", "-c", f"cat {target}/HEAD || ls {place}"])
        assert b"ref:" not in result.stdout
        assert result.stdout == b"workspace\n"


def test_both_forms_of_a_command(workspace):
    """Behaviour 12: words are never a shell's; a string is."""
    assert inside(workspace, ["echo", "a; exit 7", "$HOME", "*"]).stdout == b"a; exit 7 $HOME *\n"
    text = "cat <<'E'\na\n\nb\nE\n\nexec sh -c 'exit 7'"
    result = inside(workspace, text)
    assert (result.stdout, result.exit_code) == (b"a\n\nb\n", 7)


def test_the_command_line_has_no_shell(place, workspace):
    """Behaviour 12: one word with spaces is the name of a program, and said to be missing."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": SRC, "HOME": place, "SAGGAR_STATE_DIR": f"{place}/state"}
    done = subprocess.run(
        [sys.executable, "-m", "saggar", "run", "--", "exit 7"],
        cwd=workspace, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 127
    assert "`exit 7`" in done.stderr


def test_a_cell_made_from_the_spare_is_as_one_made_cold(workspace):
    """Behaviour 36: what was born ahead takes policy, environment and limits when it is claimed."""
    script = (
        "env | sort; cat /proc/self/limits | grep -c .; id; ls /; grep -c . /proc/self/mountinfo; cat /etc/hosts; pwd"
    )
    wide, narrow = (
        Policy(
            workspace=WorkspacePolicy(path=workspace, mode=mode),
            environment=EnvironmentPolicy(set=(("MARK", mode),)),
            limits=LimitsPolicy(tasks=tasks),
        )
        for mode, tasks in (("copy-on-write", 200), ("read-only", 40))
    )

    def look(policy):
        result = saggar.run_sync(["sh", "-c", script], policy, timeout_s=60)
        # how many tasks a watchdog saw depends on when it looked
        tasks = {name: value for name, value in result.limits["tasks"].items() if name != "peak"}
        return result.stdout, tasks, result.workspace["mode"]

    first_wide = look(wide)
    # the child that waits now was born while the wide policy's cell ran
    warm_narrow, warm_wide = look(narrow), look(wide)
    cold = subprocess.run(
        [sys.executable, "-c", COLD, SRC, workspace, script],
        env=os.environ,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert warm_narrow[0] == cold.stdout
    assert warm_wide == first_wide
    assert (warm_narrow[2], warm_wide[2]) == ("read-only", "copy-on-write")
    assert warm_narrow[1] != warm_wide[1]


COLD = """
import sys
sys.path.insert(0, sys.argv[1])
import saggar
from saggar.policy.model import EnvironmentPolicy, LimitsPolicy, Policy, WorkspacePolicy
policy = Policy(workspace=WorkspacePolicy(path=sys.argv[2], mode="read-only"),
                environment=EnvironmentPolicy(set=(("MARK", "read-only"),)), limits=LimitsPolicy(tasks=40))
sys.stdout.buffer.write(saggar.run_sync(["sh", "-c", sys.argv[3]], policy, timeout_s=60).stdout)
"""
