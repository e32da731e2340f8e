"""What a hostile run puts into the repository that its worktree is linked to, and what `apply` makes of it."""

import hashlib
import json
import os
import zlib
from contextlib import contextmanager
from pathlib import Path

import pytest

from saggar.audit.sink_host import AuditLog
from saggar.isolation.apply_open_host import open_apply
from saggar.isolation.repository_apply_host import RepositoryApply, open_repository_apply
from saggar.policy.model import LimitsPolicy, Policy, WorkspacePolicy
from saggar.testing.repository import git, make_repository
from saggar.testing.workspace_cell import run_in_workspace


@pytest.fixture
def repository(place):
    path = make_repository(f"{place}/repository")
    git("worktree", "add", "-q", "-b", "side", f"{place}/linked", cwd=path)
    return f"{path}/.git"


@pytest.fixture
def hostile(place, state, repository, settle):
    """hostile(files) writes each file (path in the repository: content; None removes it) as a run would, and gives the apply's end."""

    def run(files, *, links=(), allowed=(), skip=False, killed=None):
        settle()
        os.makedirs(f"{place}/scratch", exist_ok=True)
        policy = Policy(workspace=WorkspacePolicy(path=f"{place}/linked"), limits=LimitsPolicy(disk_bytes=64 << 20))
        done = run_in_workspace(state, policy, lambda: None, scratch=f"{place}/scratch")
        assert (done.status, done.error) == (0, "")
        upper = f"{done.run.path}/layer/repository/upper"
        owner = os.stat(upper)
        for path, content in files.items():
            where = f"{upper}/{path}"
            os.makedirs(os.path.dirname(where), exist_ok=True)
            if content is None:
                os.mknod(where, 0o20000, 0)
                continue
            Path(where).write_bytes(content)
        for target, path in links:
            os.makedirs(os.path.dirname(f"{upper}/{path}"), exist_ok=True)
            os.symlink(target, f"{upper}/{path}")
        for top, directories, names in os.walk(upper):
            for name in (*directories, *names):
                os.chown(f"{top}/{name}", owner.st_uid, owner.st_gid, follow_symlinks=False)
        done.run.end("exited")
        audit = AuditLog(f"{done.run.path}/audit.jsonl", done.run.id)
        apply = open_repository_apply(open_apply(done.run, audit), allowed=tuple(p.encode() for p in allowed))
        if killed is not None:
            with killed(), pytest.raises(KeyboardInterrupt):
                apply.write()
            apply = open_repository_apply(open_apply(done.run, audit))
        ended = apply.write(skip_refused=skip)
        log = [json.loads(line) for line in Path(done.run.path, "audit.jsonl").read_text().splitlines()]
        said = {r["detail"]["path"]: r["reason"] for r in log if r["kind"] == "workspace.refused"}
        refused = {r.path.decode(): r.reason for r in ended.refused}
        assert said == {f"{repository}/{path}": reason for path, reason in refused.items()}
        return refused, sorted(c.path.decode() for c in ended.written)

    return run


def loose(content, kind=b"blob"):
    whole = b"%s %d\0%s" % (kind, len(content), content)
    name = hashlib.sha1(whole).hexdigest()
    return f"objects/{name[:2]}/{name[2:]}", zlib.compress(whole)


def test_an_honest_object_passes(hostile, repository):
    path, data = loose(b"honest")
    assert hostile({path: data}) == ({}, [os.path.dirname(path), path])
    assert Path(repository, path).read_bytes() == data


@pytest.mark.parametrize(
    "case", ["other content", "cut short", "more behind it", "another type", "no header", "a bomb"]
)
def test_an_object_under_the_name_of_another(hostile, repository, case):
    """The next fetch would leave out an object that seems to be there."""
    path, data = loose(b"the next release")
    evil = {
        "other content": loose(b"an evil release.")[1],
        "cut short": data[:-3],
        "more behind it": data + b"x",
        "another type": loose(b"the next release", b"tree")[1],
        "no header": zlib.compress(b"x" * 100),
        "a bomb": zlib.compress(b"blob 5\0" + bytes(1 << 24)),
    }[case]
    refused, written = hostile({path: evil})
    assert (refused, written) == ({path: "git_object_forged"}, [])
    # naming it makes no hash right
    refused, _ = hostile({path: evil}, allowed=(path,), skip=True)
    assert refused == {path: "git_object_forged"}
    assert not os.path.exists(f"{repository}/{path}")


def test_no_reference_without_its_objects(hostile, repository):
    path, _ = loose(b"the next release")
    value = b"1" * 40 + b"\n"
    refused, written = hostile(
        {path: b"junk", "refs/heads/side": value, "worktrees/linked/ORIG_HEAD": value}, skip=True
    )
    assert refused == {
        path: "git_object_forged",
        "refs/heads/side": "git_objects_refused",
        "worktrees/linked/ORIG_HEAD": "git_objects_refused",
    }
    assert written == []


def test_an_object_of_the_hosts_is_neither_replaced_nor_removed(hostile, repository):
    """Not with another content, and not by what a clean-up inside has removed."""
    name = git("rev-parse", "main:kept", cwd=repository).strip()
    tree = git("rev-parse", "main^{tree}", cwd=repository).strip()
    kept, gone = (f"objects/{n[:2]}/{n[2:]}" for n in (name, tree))
    before = Path(repository, kept).read_bytes()
    assert hostile({kept: zlib.compress(b"blob 5\0evil!"), gone: None}) == ({}, [])
    assert Path(repository, kept).read_bytes() == before
    assert git("fsck", cwd=repository) == ""


PROTECTED = {
    "hooks/post-checkout": "git_hooks",
    "config": "git_config",
    "config.worktree": "git_config",
    "info/attributes": "git_internal",
    "info/grafts": "git_internal",
    "objects/info/alternates": "git_internal",
    "objects/info/http-alternates": "git_internal",
    "worktrees/linked/gitdir": "git_internal",
    "worktrees/linked/commondir": "git_internal",
    "worktrees/linked/config.worktree": "git_config",
    "worktrees/linked/rebase-merge/git-rebase-todo": "git_internal",
    "worktrees/other/HEAD": "git_internal",
    "refs/heads/main": "git_other_branch",
    "refs/remotes/origin/main": "git_other_branch",
    "refs/tags/v1": "git_other_branch",
    "refs/stash": "git_other_branch",
    "refs/replace/0123456789012345678901234567890123456789": "git_other_branch",
    "logs/refs/heads/main": "git_other_branch",
    "packed-refs": "git_other_branch",
    "HEAD": "git_internal",
    "index": "git_internal",
    "shallow": "git_internal",
    "modules/sub/hooks/post-checkout": "git_internal",
    "lfs/objects/aa/bb/aabb": "git_internal",
}  # fmt: skip


def test_what_is_not_the_worktrees_own(hostile, repository):
    value = b"1" * 40 + b"\n"
    refused, written = hostile(dict.fromkeys(PROTECTED, value), skip=True)
    assert refused == PROTECTED
    assert written == []


@pytest.mark.parametrize(
    "head",
    [
        b"ref: refs/heads/main\n",  # the next commit would be the main directory's
        b"ref: refs/remotes/origin/main\n",
        b"ref: refs/heads/../../config\n",
        b"ref: refs/heads/origin/main\n",  # hides the remote's
        b"ref: refs/heads/v0\n",  # hides a tag
        b"ref: refs/heads/-f\n",
        b"ref: refs/heads/HEAD\n",
        b"ref: refs/heads/0123456789\n",  # taken for a commit
        b"ref: refs/heads/a.lock\n",
        b"ref: refs/heads/refs/heads/main\n",
        b"ref: refs/heads/side\nref: refs/heads/main\n",
        b"../../config",
    ],
)
def test_where_the_head_may_point(hostile, repository, head):
    git("tag", "v0", cwd=repository)
    git("update-ref", "refs/remotes/origin/main", "main", cwd=repository)
    text = head.decode().split("\n")[0]
    branch = (
        text.removeprefix("ref: ") if text.startswith("ref: refs/heads/") and ".." not in text else "refs/heads/none"
    )
    files = {"worktrees/linked/HEAD": head}
    if branch not in ("refs/heads/main", "refs/heads/side", "refs/heads/a.lock"):
        files[branch] = git("rev-parse", "main", cwd=repository).encode()
    refused, written = hostile(files, skip=True)
    assert refused.get("worktrees/linked/HEAD") in ("git_other_branch", "git_ref_form")
    assert written == []


@pytest.mark.parametrize("value", [b"ref: refs/heads/main\n", b"1234\n", b"x" * 40 + b"\n", b"", b"1" * 40])
def test_what_a_branch_may_say(hostile, value):
    assert hostile({"refs/heads/side": value}) == ({"refs/heads/side": "git_ref_form"}, [])


NOTED = ["ORIG_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "AUTO_MERGE", "MERGE_HEAD", "FETCH_HEAD"]


@pytest.mark.parametrize("name", NOTED)
def test_nothing_beside_the_head_leads_to_another_branch(hostile, repository, place, name):
    """git follows it when it writes or removes the file: a commit ended `main`, a reset set it."""
    main = git("rev-parse", "main", cwd=repository)
    path = f"worktrees/linked/{name}"
    assert hostile({path: b"ref: refs/heads/main\n"}, skip=True) == ({path: "git_ref_form"}, [])
    git("commit", "-q", "--allow-empty", "-m", "x", cwd=f"{place}/linked")
    git("reset", "-q", "--hard", "HEAD~1", cwd=f"{place}/linked")
    assert git("rev-parse", "main", cwd=repository) == main


@pytest.mark.parametrize("name", NOTED)
def test_what_a_merge_notes_beside_the_head(hostile, repository, name):
    value = b"1" * 40 + b"\n"
    more = {"MERGE_HEAD": value, "FETCH_HEAD": b"\tnot-for-merge\tbranch 'x' of y\n"}.get(name, b"")
    value = value.strip() + more if name == "FETCH_HEAD" else value + more
    path = f"worktrees/linked/{name}"
    assert hostile({path: value}) == ({}, [path])


@pytest.mark.parametrize("packed", [True, False])
def test_a_new_branch_below_one_of_the_hosts(hostile, repository, packed):
    """With refs/heads/main/x there, nobody could commit to `main` any more."""
    if packed:
        git("pack-refs", "--all", cwd=repository)
    value = git("rev-parse", "main", cwd=repository).encode()
    refused, written = hostile(
        {"worktrees/linked/HEAD": b"ref: refs/heads/main/x\n", "refs/heads/main/x": value}, skip=True
    )
    assert (refused["refs/heads/main/x"], refused["worktrees/linked/HEAD"]) == ("git_other_branch",) * 2
    assert written == []
    git("commit", "-q", "--allow-empty", "-m", "x", cwd=os.path.dirname(repository))


def test_an_index_that_leads_out_of_the_worktree(hostile, repository, place):
    """`git checkout -- .` and `git restore .` wrote what it named: a hook of the repository, the user's profile."""
    linked = f"{place}/linked"
    name = git("rev-parse", "main:kept", cwd=repository).strip()
    git("update-index", "--add", "--cacheinfo", f"100755,{name},aa/repository/agit/hooks/x", cwd=linked)
    path = "worktrees/linked/index"
    honest = Path(repository, path).read_bytes()
    git("reset", "-q", cwd=linked)
    evil = honest.replace(b"aa/repository/agit/hooks/x", b"../repository/.git/hooks/x")
    assert hostile({path: evil}, skip=True) == ({path: "git_index_path"}, [])
    assert hostile({path: evil}, allowed=(path,), skip=True) == ({path: "git_index_path"}, [])
    git("checkout", "--", ".", cwd=linked)
    assert not os.path.exists(f"{repository}/hooks/x")
    assert hostile({path: honest}) == ({}, [path])


def test_an_apply_that_is_killed_before_a_directory_has_its_mode_goes_on(hostile, repository, monkeypatch):
    path, data = loose(b"honest")

    @contextmanager
    def killed():
        with monkeypatch.context() as patch:
            patch.setattr(os, "fchmod", _interrupt)
            yield

    assert hostile({path: data}, killed=killed) == ({}, [os.path.dirname(path), path])
    assert Path(repository, path).read_bytes() == data
    assert os.stat(f"{repository}/{os.path.dirname(path)}").st_mode & 0o777 == 0o755


def test_an_apply_that_is_killed_between_a_new_branch_and_the_head_goes_on(hostile, repository, monkeypatch):
    value = git("rev-parse", "main", cwd=repository).encode()
    head = "worktrees/linked/HEAD"
    real = RepositoryApply._one

    def one(self, change, *more):
        if change.path == head.encode():
            raise KeyboardInterrupt
        real(self, change, *more)

    @contextmanager
    def killed():
        with monkeypatch.context() as patch:
            patch.setattr(RepositoryApply, "_one", one)
            yield

    files = {"refs/heads/fix/one": value, head: b"ref: refs/heads/fix/one\n"}
    assert hostile(files, killed=killed) == ({}, [head])
    assert git("rev-parse", "fix/one", cwd=repository).encode() == value


def _interrupt(*_):
    raise KeyboardInterrupt


def test_links_and_removals(hostile, repository):
    links = [("/etc/passwd", "worktrees/linked/ORIG_HEAD"), ("../../../x", "objects/zz"), ("/tmp", "objects/aa")]
    refused, written = hostile({"refs/heads/side": None, "logs/refs/heads/main": None}, links=links, skip=True)
    assert refused == {
        "refs/heads/side": "git_ref_deleted",
        "logs/refs/heads/main": "git_other_branch",
        "worktrees/linked/ORIG_HEAD": "git_link",
        "objects/zz": "git_link",
        "objects/aa": "git_link",
    }
    assert written == []


def test_locks_and_caches_stay_in_the_run(hostile, repository):
    names = ["worktrees/linked/index.lock", "refs/heads/side.lock", "objects/info/commit-graph", "objects/pack/multi-pack-index",
             "objects/pack/pack-" + "1" * 40 + ".rev", "objects/ab/tmp_obj_x", "gc.pid"]  # fmt: skip
    assert hostile(dict.fromkeys(names, b"evil")) == ({}, [])


@pytest.fixture
def pack(place, repository):
    """A pack of two commits that the repository does not have, with deltas, and its index."""
    other = f"{place}/other"
    git("clone", "-q", f"file://{repository}", other, cwd=place)
    for i in range(3):
        Path(other, "f").write_text("".join(f"{n}\n" for n in range(i, 3000)))
        git("add", "f", cwd=other)
        git("commit", "-q", "-m", "c", cwd=other)
    git("repack", "-adfq", cwd=other)
    (found,) = Path(other, ".git/objects/pack").glob("*.pack")
    stem = f"objects/pack/{found.name[:-5]}"
    return stem, found.read_bytes(), found.with_suffix(".idx").read_bytes()


def test_an_honest_pack_passes(hostile, repository, pack):
    stem, data, index = pack
    assert hostile({f"{stem}.pack": data, f"{stem}.idx": index}) == ({}, [f"{stem}.idx", f"{stem}.pack"])
    git("verify-pack", f"{repository}/{stem}.idx", cwd=repository)


def test_another_pack_beside_it_makes_no_honest_one_refused(hostile, pack):
    stem, data, index = pack
    odd = f"objects/pack/pack-{'f' * 64}"
    refused, written = hostile(
        {f"{stem}.pack": data, f"{stem}.idx": index, f"{odd}.pack": b"x", f"{odd}.idx": b"x"}, skip=True
    )
    assert refused == dict.fromkeys((f"{odd}.pack", f"{odd}.idx"), "git_pack_unchecked")
    assert written == [f"{stem}.idx", f"{stem}.pack"]


@pytest.mark.parametrize("case", ["a name exchanged", "pack cut", "no index", "no pack", "a bit", "an empty pack"])
def test_a_pack_that_is_not_what_its_index_says(hostile, repository, pack, case):
    """An index that gives one object the place of another makes it stand for that one, and git does not hash what it reads."""
    stem, data, index = pack
    if case == "a name exchanged":
        at = 8 + 1024
        body = index[:at] + bytes([index[at]]) + b"\xff" * 19 + index[at + 20 : -20]
        index = body + hashlib.sha1(body).digest()
    elif case == "pack cut":
        data = data[: len(data) // 2]
    elif case == "a bit":
        body = bytearray(data[:-20])
        body[40] ^= 1
        data = bytes(body) + hashlib.sha1(body).digest()
    elif case == "an empty pack":
        data = b""
    files = {f"{stem}.pack": data, f"{stem}.idx": index}
    if case == "no index":
        del files[f"{stem}.idx"]
    elif case == "no pack":
        del files[f"{stem}.pack"]
    refused, written = hostile(files | {"refs/heads/side": b"1" * 40 + b"\n"}, skip=True)
    assert refused == {**dict.fromkeys(set(files), "git_pack_unchecked"), "refs/heads/side": "git_objects_refused"}
    assert written == []
