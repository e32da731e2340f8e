import pytest

from saggar.isolation.changes import ADDED, DELETED, FILE, MODIFIED, Change, Node
from saggar.isolation.repository_rules import Began, head_branch, new_branch, refusal, stays

WORKTREE = Began({"admin": "worktrees/w", "branch": "side", "loose": True, "names": ["HEAD"]})
SUBMODULE = Began({"admin": "", "branch": "main"})
NODE = Node(kind=FILE)
VALUE = b"1" * 40 + b"\n"


def change(path, kind=ADDED):
    before = None if kind == ADDED else NODE
    return Change(path.encode(), kind, before=before, after=None if kind == DELETED else NODE)


@pytest.mark.parametrize(
    ("began", "path", "text", "why"),
    [
        (WORKTREE, "refs/heads/side", VALUE, ""),
        (WORKTREE, "refs/heads/side", b"ref: refs/heads/main\n", "git_ref_form"),
        (WORKTREE, "refs/heads/side/x", VALUE, "git_other_branch"),
        (WORKTREE, "logs/refs/heads/side", None, ""),
        (WORKTREE, "logs/HEAD", None, "git_internal"),
        (WORKTREE, "worktrees/w/HEAD", b"ref: refs/heads/side\n", ""),
        (WORKTREE, "worktrees/w/HEAD", VALUE, ""),
        (WORKTREE, "worktrees/w/HEAD", b"ref: refs/heads/main\n", "git_other_branch"),
        (WORKTREE, "worktrees/w/index", None, ""),
        (WORKTREE, "worktrees/w/logs/HEAD", None, ""),
        (WORKTREE, "worktrees/w/commondir", None, "git_internal"),
        (WORKTREE, "worktrees/ww/HEAD", VALUE, "git_internal"),
        (WORKTREE, "HEAD", VALUE, "git_internal"),
        (WORKTREE, "index", None, "git_internal"),
        (WORKTREE, "hooks/post-commit", None, "git_hooks"),
        (SUBMODULE, "HEAD", b"ref: refs/heads/main\n", ""),
        (SUBMODULE, "index", None, ""),
        (SUBMODULE, "logs/HEAD", None, ""),
        (SUBMODULE, "refs/heads/main", VALUE, ""),
        (SUBMODULE, "refs/heads/other", VALUE, "git_other_branch"),
        (SUBMODULE, "config", None, "git_config"),
        (SUBMODULE, "shallow", None, "git_internal"),
        (SUBMODULE, "packed-refs", None, "git_other_branch"),
    ],
)  # fmt: skip
def test_what_is_the_worktrees_own(began, path, text, why):
    assert refusal(change(path), began, frozenset({began.branch}), text) == why


@pytest.mark.parametrize(
    ("path", "kind", "expected"),
    [
        ("objects/ab/" + "1" * 38, ADDED, False),
        ("objects/ab/" + "1" * 38, MODIFIED, True),
        ("objects/ab/" + "1" * 38, DELETED, True),
        ("objects/pack/pack-" + "1" * 40 + ".pack", DELETED, True),
        ("objects/info/commit-graph", ADDED, True),
        ("objects/info/alternates", ADDED, False),
        ("worktrees/w/index.lock", ADDED, True),
        ("worktrees/w/index", MODIFIED, False),
        ("packed-refs", MODIFIED, False),
    ],
)  # fmt: skip
def test_what_stays_in_the_run(path, kind, expected):
    assert stays(change(path, kind)) is expected


@pytest.mark.parametrize("name", ["fix", "fix/one", "a.b-c_d", "Feature/X1", "v2"])
def test_a_new_branch(name):
    assert new_branch(name)
    assert head_branch(f"ref: refs/heads/{name}\n".encode()) == name


@pytest.mark.parametrize(
    "name",
    ["", "-x", ".x", "x/.y", "x..y", "x.lock", "x/", "/x", "x//y", "HEAD", "ORIG_HEAD", "deadbeef", "refs/heads/x",
     "remotes/x/y", "a b", "a\nb", "a~1", "a^", "a:b", "a@{1}", "x.", "ä", "a" * 200],
)  # fmt: skip
def test_a_name_that_is_taken_for_something_else(name):
    assert not new_branch(name)
