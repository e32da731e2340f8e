"""Which directory outside the workspace git's own file may bring into the cell. Behaviour 16."""

import os
import subprocess
import sys
import time

import pytest

from saggar.isolation.linked_git_host import repository

IDENTITY = {f"GIT_{who}_{what}": "a@a.test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(*words, cwd):
    env = os.environ | IDENTITY | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *words], cwd=cwd, env=env, check=True, capture_output=True
    )


def ask(path, owner=-1):
    path = os.path.realpath(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found, opened, _ = repository(path, fd, owner=owner)
        if opened >= 0:
            assert os.readlink(f"/proc/self/fd/{opened}") == found
            os.close(opened)
        return found
    finally:
        os.close(fd)


def put(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


@pytest.fixture
def main(tmp_path):
    path = f"{os.path.realpath(tmp_path)}/main"
    os.mkdir(path)
    git("init", "-q", cwd=path)
    git("commit", "-q", "--allow-empty", "-m", "one", cwd=path)
    return path


def test_a_linked_worktree(main):
    git("worktree", "add", "-q", "../linked", cwd=main)
    assert ask(f"{main}/../linked") == f"{main}/.git"


def test_a_linked_worktree_of_a_bare_repository(main):
    bare = f"{os.path.dirname(main)}/bare"
    git("clone", "-q", "--bare", main, bare, cwd=main)
    git("worktree", "add", "-q", "-b", "side", "../linked", cwd=bare)
    assert ask(f"{bare}/../linked") == bare


def test_a_submodule(main):
    outer = f"{os.path.dirname(main)}/outer"
    os.mkdir(outer)
    git("init", "-q", cwd=outer)
    git("submodule", "add", "-q", main, "sub", cwd=outer)
    assert ask(f"{outer}/sub") == f"{outer}/.git/modules/sub"
    assert ask(outer) == ""


def test_nothing_where_the_repository_is_inside_or_missing(main, tmp_path):
    git("init", "-q", "--separate-git-dir", f"{main}/kept", cwd=main)
    assert ask(main) == ""
    assert ask(tmp_path) == ""
    os.mkfifo(tmp_path / ".git")
    assert ask(tmp_path) == ""


def forge_elsewhere(main, workspace):
    """A directory that looks like a repository and knows nothing of the workspace."""
    put(f"{workspace}/.git", f"gitdir: {main}/.git\n")


def forge_of_another(main, workspace):
    """A worktree's directory, of another worktree."""
    git("worktree", "add", "-q", "../linked", cwd=main)
    put(f"{workspace}/.git", f"gitdir: {main}/.git/worktrees/linked\n")


def forge_inside_and_out(main, workspace):
    """A directory of the workspace that names the workspace, and a common directory elsewhere."""
    inside = f"{workspace}/mine/worktrees/w"
    os.makedirs(inside)
    put(f"{inside}/gitdir", f"{workspace}/.git\n")
    put(f"{inside}/commondir", f"{main}/.git\n")
    put(f"{workspace}/.git", "gitdir: mine/worktrees/w\n")


def forge_with_a_link(main, workspace):
    """`.git` is a symbolic link to a file that would do."""
    git("worktree", "add", "-q", "../linked", cwd=main)
    os.symlink(f"{main}/../linked/.git", f"{workspace}/.git")


def forge_through_a_link(main, workspace):
    """The repository's place for worktrees entered through a link of the workspace."""
    os.symlink(f"{main}/.git", f"{workspace}/common")
    put(f"{workspace}/.git", "gitdir: common/worktrees/w\n")


@pytest.mark.parametrize(
    "forge", [forge_elsewhere, forge_of_another, forge_inside_and_out, forge_with_a_link, forge_through_a_link]
)
def test_a_forged_link_opens_nothing(main, tmp_path, forge):
    workspace = f"{os.path.realpath(tmp_path)}/workspace"
    os.mkdir(workspace)
    forge(main, workspace)
    assert ask(workspace) == ""


def test_a_repository_of_another_owner(main):
    git("worktree", "add", "-q", "../linked", cwd=main)
    assert ask(f"{main}/../linked", os.geteuid()) == f"{main}/.git"
    assert ask(f"{main}/../linked", os.geteuid() + 1) == ""


@pytest.mark.parametrize(
    "part", ["objects", "refs", "HEAD", "worktrees", "worktrees/linked", "worktrees/linked/gitdir"]
)
def test_no_part_that_is_asked_may_be_a_link(main, part):
    git("worktree", "add", "-q", "../linked", cwd=main)
    os.rename(f"{main}/.git/{part}", f"{main}/moved")
    os.symlink(f"{main}/moved", f"{main}/.git/{part}")
    assert ask(f"{main}/../linked") == ""


EXCHANGE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2)
"""


@pytest.mark.parametrize("other", ["link", "directory"])
def test_an_exchange_in_between_opens_only_what_was_asked(main, tmp_path, other):
    # who may write the repository swaps it for a link to, or another directory with, a secret
    git("worktree", "add", "-q", "../linked", cwd=main)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "only-root").write_text("secret")
    place = f"{main}/swap"
    if other == "link":
        os.symlink(secret, place)
    else:
        os.rename(secret, place)
    asked = os.open(f"{main}/../linked", os.O_RDONLY | os.O_DIRECTORY)
    swapping = subprocess.Popen([sys.executable, "-c", EXCHANGE, f"{main}/.git", place])
    found = 0
    try:
        until = time.monotonic() + 20
        while time.monotonic() < until and (found < 200):
            _, opened, _ = repository(os.path.realpath(f"{main}/../linked"), asked)
            if opened >= 0:
                found += 1
                assert "worktrees" in os.listdir(f"/proc/self/fd/{opened}")
                os.close(opened)
    finally:
        swapping.kill()
        swapping.wait()
        os.close(asked)
    assert found


@pytest.mark.parametrize(
    "text", ["", "gitdir:", "gitdir: ", "gitdir: /\n", "gitdir: ../../..\n", "gitdir: \0\n", "x" * 20_000]
)
def test_whatever_the_file_says_there_is_an_answer(tmp_path, text):
    put(tmp_path / ".git", text)
    assert ask(tmp_path) == ""
