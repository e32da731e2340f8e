import os

import pytest

from saggar.isolation.alias_host import aliases, hooks_paths


@pytest.mark.parametrize(
    ("config", "paths"),
    [
        (b"[core]\n\thooksPath = tools/hooks\n", [b"tools/hooks"]),
        (b"[CORE]\n HOOKSPATH=a # why\n[user]\nhooksPath = b\n", [b"a"]),
        (b'[core] hooksPath = "a b;c" ; x\n', [b"a b;c"]),
        (b'[core]\nhooksPath = "a\\"b"\n', [b'a"b']),
        (b'[core "x"]\nhooksPath = a\n', []),
        (b"[core]\nhooksPath\n", []),
        (b"[core]\nhooksPath =\n", []),
        (b"\xff\0[[[", []),
    ],
)
def test_hooks_paths(config, paths):
    assert hooks_paths(config) == paths


def found(workspace, home="/nonexistent"):
    fd = os.open(workspace, os.O_RDONLY)
    try:
        return aliases(fd, workspace, {"HOME": home})
    finally:
        os.close(fd)


def test_links_of_protected_names_protect_what_they_lead_to(workspace):
    for name in ("tools/hooks", "docs", "sub/.git", ".git", "plain"):
        os.makedirs(f"{workspace}/{name}")
    os.symlink("../tools/hooks", f"{workspace}/.git/hooks")
    os.symlink("docs/agents.txt", f"{workspace}/CLAUDE.md")
    os.symlink("../../plain", f"{workspace}/sub/.git/hooks")
    os.symlink("/etc/passwd", f"{workspace}/.bashrc")
    os.symlink(".", f"{workspace}/.vscode")
    os.symlink("plain", f"{workspace}/harmless")
    assert found(workspace) == {
        b"tools/hooks": "git_hooks",
        b"docs/agents.txt": "agent_settings",
        b"plain": "git_hooks",
    }


def test_chains_and_loops(workspace):
    os.symlink("b", f"{workspace}/.envrc")
    os.symlink("c", f"{workspace}/b")
    os.symlink(".mcp.json", f"{workspace}/AGENTS.md")
    os.symlink("AGENTS.md", f"{workspace}/.mcp.json")
    assert found(workspace)[b"c"] == "directory_environment"


def test_hooks_paths_of_the_repository_and_of_the_user(workspace, place):
    os.makedirs(f"{workspace}/.git")
    os.makedirs(f"{place}/home")
    with open(f"{workspace}/.git/config", "w") as file:
        file.write(f"[core]\n\thooksPath = {workspace}/scripts/hooks\n")
    with open(f"{place}/home/.gitconfig", "w") as file:
        file.write("[core]\n\thooksPath = dev/hooks\n")
    assert found(workspace, f"{place}/home") == {b"scripts/hooks": "git_hooks", b"dev/hooks": "git_hooks"}


def test_no_descriptor_is_left(workspace):
    for i in range(50):
        os.makedirs(f"{workspace}/{i}/a/b")
    before = len(os.listdir("/proc/self/fd"))
    found(workspace)
    assert len(os.listdir("/proc/self/fd")) == before
