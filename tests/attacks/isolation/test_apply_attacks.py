"""What a run, or a program on the host beside it, may try so that `saggar apply` reads or writes elsewhere.

Real overlay mounts, real files; each attempt must fail and must be on record.
"""

import hashlib
import json
import os
import shutil
import socket
import stat
import threading

import pytest

from saggar.audit.sink_host import AuditLog
from saggar.core.errors import UsageError
from saggar.isolation.apply_open_host import open_apply
from saggar.isolation.layer_host import open_layer
from saggar.isolation.layer_save_host import save_memory_layer
from saggar.isolation.shown import shown

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make files of other owners")
user_only = pytest.mark.skipif(os.geteuid() == 0, reason="needs an unprivileged caller, whose cell maps one owner")


def put(path, text="evil", mode=None):
    with open(path, "w") as file:
        file.write(text)
    if mode is not None:
        os.chmod(path, mode)


def ended(done):
    assert (done.status, done.error) == (0, "")
    done.run.end("exited")
    return done.run


def apply(run, *paths, skip=False, **options):
    audit = AuditLog(f"{run.path}/audit.jsonl", run.id)
    try:
        return open_apply(run, audit, **options).write(tuple(p.encode() for p in paths), skip_refused=skip)
    finally:
        audit.close()


def refusals(done):
    return [(os.fsdecode(r.path), r.reason) for r in done.refused]


def recorded(run):
    with open(f"{run.path}/audit.jsonl") as log:
        records = [json.loads(line) for line in log]
    return [(r["detail"]["path"], r["reason"]) for r in records if r["kind"] == "workspace.refused"]


def refused_and_recorded(run, *expected, written=(), **options):
    """Apply everything else; what is expected, and no more, is refused and on record."""
    done = apply(run, skip=True, **options)
    assert refusals(done) == list(expected)
    assert recorded(run) == list(expected)
    assert [os.fsdecode(c.path) for c in done.written] == list(written)


@pytest.fixture
def outside(place):
    """A directory beside the workspace with a secret, which nothing may change or copy."""
    path = f"{place}/outside"
    os.mkdir(path)
    put(f"{path}/secret", "secret")
    yield path
    assert os.listdir(path) == ["secret"]
    assert open(f"{path}/secret").read() == "secret"


# -- protected paths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".git/hooks/pre-commit", "git_hooks"),
        (".git/config", "git_config"),
        (".git/config.worktree", "git_config"),
        (".git/modules/sub/hooks/update", "git_internal"),
        (".git/modules/sub/config", "git_internal"),
        (".git/worktrees/w/commondir", "git_internal"),
        (".git/info/attributes", "git_internal"),
        (".git/objects/info/alternates", "git_internal"),
        (".git/rebase-merge/git-rebase-todo", "git_internal"),
    ],
)
def test_git_orders_that_do_not_exist_yet(contained, workspace, path, reason):
    for name in ("HEAD", "objects/", "refs/"):
        if name.endswith("/"):
            os.makedirs(f"{workspace}/.git/{name}")
        else:
            os.makedirs(f"{workspace}/.git", exist_ok=True)
            put(f"{workspace}/.git/{name}", "ref: refs/heads/main\n")

    def command():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        put(path)
        put(".git/refs/main", "data")

    done = apply(ended(contained(command)), skip=True)
    assert (path, reason) in refusals(done)
    assert b".git/refs/main" in [c.path for c in done.written]
    assert not os.path.exists(f"{workspace}/{path}")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".GIT/HOOKS/pre-commit", "git_directory"),
        (".Git/config", "git_directory"),
        (".gi\u200ct/config", "git_directory"),
        ("GIT~1/config", "git_directory"),
        (".git /config", "git_directory"),
        (".envrc", "directory_environment"),
        (".bashrc", "shell_startup"),
        (".vscode/tasks.json", "editor_settings"),
        (".claude/settings.json", "agent_settings"),
        ("sub/CLAUDE.md", "agent_settings"),
        (".cursor/mcp.json", "agent_settings"),
        (".github/workflows/ci.yml", "ci_settings"),
        ("saggar.toml", "saggar_policy"),
        (".gitmodules", "git_settings"),
    ],
)
def test_protected_paths_and_their_other_spellings(contained, workspace, path, reason):
    def command():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        put(path)

    run = ended(contained(command))
    done = apply(run, skip=True)
    assert reason in [why for _, why in refusals(done)]
    assert recorded(run) == [(shown(name), why) for name, why in refusals(done)]
    assert not os.path.exists(f"{workspace}/{path}")
    named = apply(run, allowed=(path.split("/")[0].encode(),))
    assert named.complete
    assert open(f"{workspace}/{path}").read() == "evil"


def test_git_as_a_file_or_a_link(contained, workspace, outside):
    def command():
        os.makedirs("a")
        os.makedirs("b")
        put("a/.git", f"gitdir: {outside}\n")
        os.symlink("../real", "b/.git")
        os.makedirs("real/hooks")

    run = ended(contained(command))
    done = apply(run, skip=True)
    assert ("a/.git", "git_directory") in refusals(done)
    assert ("b/.git", "git_link") in refusals(done) or ("b/.git", "git_directory") in refusals(done)
    assert not os.path.lexists(f"{workspace}/a/.git")
    assert not os.path.lexists(f"{workspace}/b/.git")


def _index(name):
    body = bytes(24) + (0o100755).to_bytes(4, "big") + bytes(12 + 20) + len(name).to_bytes(2, "big") + name
    body = b"DIRC\0\0\0\2\0\0\0\1" + body + bytes(8 - len(body) % 8)
    return body + hashlib.sha1(body).digest()


@pytest.mark.parametrize("where", [".git", "sub/.git", ".git/worktrees/w", ".git/modules/m"])
def test_an_index_that_leads_elsewhere(contained, workspace, where):
    """git writes an entry where the index says: `git restore .` wrote `../../.profile` and `.git/hooks/post-checkout`."""
    os.makedirs(f"{workspace}/{where}")
    for name in (b"../../.profile", b".git/hooks/post-checkout", b"kept"):

        def evil(name=name):
            with open(f"{where}/index", "wb") as file:
                file.write(_index(name))

        run = ended(contained(evil))
        if name == b"kept":
            assert (apply(run).refused, os.path.exists(f"{workspace}/{where}/index")) == ([], True)
        else:
            refused_and_recorded(run, (f"{where}/index", "git_index_path"))
            assert refusals(apply(run, allowed=(f"{where}/index".encode(),))) == [(f"{where}/index", "git_index_path")]


def test_a_bare_repository_is_a_git_directory(contained, workspace):
    def command():
        for name in ("objects", "refs", "hooks"):
            os.makedirs(f"docs/{name}")
        put("docs/HEAD", "ref: refs/heads/main\n")
        put("docs/config", "[core]\n\tfsmonitor = touch /tmp/pwned\n")
        put("docs/hooks/post-checkout", mode=0o755)

    run = ended(contained(command))
    done = apply(run, skip=True)
    assert {why for _, why in refusals(done)} == {"git_directory"}
    assert not os.path.exists(f"{workspace}/docs/config")


def test_a_bare_repository_in_two_runs(contained, workspace):
    """First what is harmless alone, then what makes git take it for a repository."""

    def first():
        os.mkdir("docs")
        put("docs/config", "[core]\n\tfsmonitor = touch /tmp/pwned\n")

    def second():
        for name in ("objects", "refs"):
            os.makedirs(f"docs/{name}")
        put("docs/HEAD", "ref: refs/heads/main\n")

    assert apply(ended(contained(first))).complete
    done = apply(ended(contained(second)), skip=True)
    assert {why for _, why in refusals(done)} == {"git_directory"}
    assert os.listdir(f"{workspace}/docs") == ["config"]


def test_a_link_into_git_does_not_carry_a_write_there(contained, workspace):
    """Inside, the kernel resolves the link: the layer holds the true path."""
    os.makedirs(f"{workspace}/.git/hooks")

    def command():
        os.symlink(".git/hooks", "innocent")
        put("innocent/pre-commit")

    done = apply(ended(contained(command)), skip=True)
    assert (".git/hooks/pre-commit", "git_hooks") in refusals(done)
    assert os.listdir(f"{workspace}/.git/hooks") == []


def test_removing_a_directory_with_protected_paths_in_it(contained, workspace):
    os.makedirs(f"{workspace}/lib/.github/workflows")
    put(f"{workspace}/lib/.github/workflows/ci.yml", "ci")
    run = ended(contained(lambda: shutil.rmtree("lib")))
    refused_and_recorded(run, ("lib", "ci_settings"))
    assert os.path.exists(f"{workspace}/lib/.github/workflows/ci.yml")
    assert apply(run, allowed=(b"lib",)).complete
    assert os.listdir(workspace) == []


def test_the_policys_own_protected_paths(place, state, workspace, settle):
    from saggar.policy.model import Policy, WorkspacePolicy
    from saggar.testing.workspace_cell import run_in_workspace

    os.mkdir(f"{place}/scratch")
    settle()
    policy = Policy(workspace=WorkspacePolicy(path=workspace, protect=("infra/**", "*.pem")))

    def command():
        os.makedirs("infra/prod")
        put("infra/prod/main.tf")
        put("KEY.PEM")
        put("free")

    done = apply(ended(run_in_workspace(state, policy, command, scratch=f"{place}/scratch")), skip=True)
    assert ("KEY.PEM", "policy_protect") in refusals(done)
    assert ("infra/prod/main.tf", "policy_protect") in refusals(done)
    assert os.listdir(workspace) == ["free"]


# -- links and special files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "..", "../outside/secret", "sub/../../outside/secret", "./../outside"]
)
def test_links_that_lead_out(contained, workspace, outside, target):
    run = ended(contained(lambda: os.symlink(target, "link")))
    refused_and_recorded(run, ("link", "symlink_leaves_workspace"))
    assert not os.path.lexists(f"{workspace}/link")


def test_links_are_copied_as_links(contained, workspace, outside):
    put(f"{workspace}/there", "host")
    os.symlink(f"{outside}/secret", f"{workspace}/host_link")

    def command():
        os.symlink("there", "link")
        os.unlink("host_link")
        put("host_link", "not the secret")

    assert apply(ended(contained(command))).complete
    assert os.readlink(f"{workspace}/link") == "there"
    assert open(f"{workspace}/there").read() == "host"
    assert not os.path.islink(f"{workspace}/host_link")


def test_fifos_and_sockets_are_refused(contained, workspace):
    def command():
        os.mkfifo("fifo")
        socket.socket(socket.AF_UNIX).bind("socket")
        put("file")

    refused_and_recorded(
        ended(contained(command)), ("fifo", "special_file"), ("socket", "special_file"), written=["file"]
    )


def test_set_user_id_bits_stay_inside(contained, workspace):
    put(f"{workspace}/there")

    def command():
        put("tool", mode=0o6755)
        os.mkdir("dir")
        os.chmod("dir", 0o2775)
        os.chmod("there", 0o4711)

    assert apply(ended(contained(command))).complete
    modes = {n: stat.S_IMODE(os.stat(f"{workspace}/{n}").st_mode) for n in os.listdir(workspace)}
    assert modes == {"tool": 0o755, "dir": 0o775, "there": 0o711}


def test_attributes_stay_inside(contained, workspace):
    def command():
        put("file")
        os.setxattr("file", "user.note", b"x")

    assert apply(ended(contained(command))).complete
    assert os.listxattr(f"{workspace}/file") == []


# -- a layer that was tampered with ----------------------------------------------------------------------------------------------


def upper(run):
    return f"{run.path}/layer/upper"


def own_to_cell(path, like):
    status = os.stat(like)
    os.chown(path, status.st_uid, status.st_gid, follow_symlinks=False)


def test_a_link_in_the_stead_of_a_layer_file(contained, workspace, outside):
    run = ended(contained(lambda: put("file")))
    os.unlink(f"{upper(run)}/file")
    os.symlink(f"{outside}/secret", f"{upper(run)}/file")
    own_to_cell(f"{upper(run)}/file", upper(run))
    refused_and_recorded(run, ("file", "symlink_leaves_workspace"))


def test_a_hard_link_to_a_file_outside_the_layer(contained, workspace, outside):
    run = ended(contained(lambda: put("file")))
    os.unlink(f"{upper(run)}/file")
    os.link(f"{outside}/secret", f"{upper(run)}/file")
    if os.geteuid() == 0:
        refused_and_recorded(run, ("file", "foreign_owner"))
        own_to_cell(f"{outside}/secret", upper(run))
        assert refusals(apply(run)) == [("file", "hard_link_from_outside")]
    else:
        refused_and_recorded(run, ("file", "hard_link_from_outside"))
    assert not os.path.exists(f"{workspace}/file")


def test_hard_links_of_the_runs_own_are_files(contained, workspace):
    def command():
        put("one", "same")
        os.link("one", "two")

    assert apply(ended(contained(command))).complete
    assert (open(f"{workspace}/one").read(), open(f"{workspace}/two").read()) == ("same", "same")


@pytest.mark.parametrize("mark", ["metacopy", "redirect"])
def test_marks_that_no_cell_can_make(contained, workspace, mark):
    run = ended(contained(lambda: put("file")))
    os.setxattr(f"{upper(run)}/file", f"user.overlay.{mark}", b"/../../outside/secret")
    refused_and_recorded(run, ("file", "layer_format"))


def test_a_cell_cannot_set_marks(contained, workspace):
    def command():
        put("file")
        os.setxattr("file", "user.overlay.metacopy", b"")
        os.mkdir("dir")
        os.setxattr("dir", "user.overlay.opaque", b"y")
        os.setxattr("dir", "user.overlay.redirect", b"/file")

    done = contained(command)
    if done.error:
        pytest.skip("this kernel refuses user.overlay attributes through the mount, which is as good")
    assert apply(ended(done)).complete
    assert open(f"{workspace}/file").read() == "evil"


def test_whiteouts_of_both_kinds(contained, workspace):
    for name in ("device", "xattr"):
        put(f"{workspace}/{name}", "host")
    run = ended(contained(lambda: os.unlink("device")))
    put(f"{upper(run)}/xattr", "")
    os.setxattr(f"{upper(run)}/xattr", "user.overlay.whiteout", b"")
    own_to_cell(f"{upper(run)}/xattr", upper(run))
    assert [(c.path, c.kind) for c in open_layer(run).changes()] == [(b"device", "deleted"), (b"xattr", "deleted")]


@root_only
def test_devices_and_foreign_owners_in_the_layer(contained, workspace):
    def command():
        put("a")
        os.mkdir("d")

    run = ended(contained(command))
    os.mknod(f"{upper(run)}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    put(f"{upper(run)}/rooted", "root's")
    os.mkdir(f"{upper(run)}/dir")
    refused_and_recorded(
        run, ("dir", "foreign_owner"), ("null", "special_file"), ("rooted", "foreign_owner"), written=["a", "d"]
    )


def test_a_layer_file_exchanged_between_check_and_write(contained, workspace, outside):
    run = ended(contained(lambda: put("file")))
    audit = AuditLog(f"{run.path}/audit.jsonl", run.id)
    work = open_apply(run, audit)
    plan = work.plan

    def plan_then_swap(paths=()):
        found = plan(paths)
        os.unlink(f"{upper(run)}/file")
        os.link(f"{outside}/secret", f"{upper(run)}/file")
        return found

    type(work).plan, original = lambda _self, paths=(): plan_then_swap(paths), type(work).plan
    try:
        done = work.write()
    finally:
        type(work).plan = original
    assert refusals(done) == [("file", "layer_changed")]
    assert recorded(run) == [("file", "layer_changed")]
    assert not os.path.exists(f"{workspace}/file")


# -- a hostile host -----------------------------------------------------------------------------------------------------------


def test_a_parent_that_became_a_link(contained, workspace, outside):
    os.mkdir(f"{workspace}/dir")
    put(f"{workspace}/dir/secret", "host")

    def command():
        put("dir/secret")
        put("dir/new")

    run = ended(contained(command))
    shutil.rmtree(f"{workspace}/dir")
    os.symlink(outside, f"{workspace}/dir")
    done = apply(run)
    assert refusals(done)[0] == ("dir", "host_deleted") or refusals(done)[0] == ("dir", "host_changed")
    assert done.written == []
    assert os.path.islink(f"{workspace}/dir")
    # told to overwrite, it replaces the link and does not follow it
    assert apply(run, overwrite=True).complete
    assert not os.path.islink(f"{workspace}/dir")
    assert sorted(os.listdir(f"{workspace}/dir")) == ["new", "secret"]


def test_the_workspace_itself_exchanged(contained, workspace, outside, place):
    run = ended(contained(lambda: put("secret")))
    os.rename(workspace, f"{place}/moved")
    os.symlink(outside, workspace)
    with pytest.raises(UsageError, match="cannot be opened"):
        apply(run)
    os.unlink(workspace)
    os.mkdir(workspace)
    with pytest.raises(UsageError, match="is not the directory"):
        apply(run)
    assert os.listdir(workspace) == []


def test_a_living_run_is_not_applied(contained, workspace, state):
    done = contained(lambda: put("file"))
    with pytest.raises(UsageError, match="still alive"):
        apply(state.open_run(done.run.id))
    assert os.listdir(workspace) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_parent_exchanged_for_a_link_after_the_check(contained, workspace, outside, overwrite):
    os.mkdir(f"{workspace}/dir")
    put(f"{workspace}/dir/secret", "host")

    def command():
        put("dir/secret", "ours")
        put("dir/new", "ours")

    run = ended(contained(command))
    audit = AuditLog(f"{run.path}/audit.jsonl", run.id)
    work = open_apply(run, audit, overwrite=overwrite)
    original = type(work).plan

    def plan_then_swap(self, paths=()):
        found = original(self, paths)
        os.rename(f"{workspace}/dir", f"{workspace}/aside")
        os.symlink(outside, f"{workspace}/dir")
        return found

    type(work).plan = plan_then_swap
    try:
        done = work.write()
    finally:
        type(work).plan = original
    assert refusals(done) == [("dir", "symlinked_parent")]
    assert recorded(run) == [("dir", "symlinked_parent")]
    assert done.written == []
    # another directory is no better than a link
    os.unlink(f"{workspace}/dir")
    os.mkdir(f"{workspace}/dir")
    assert {p for p, _ in refusals(apply(run))} == {"dir/new", "dir/secret"}


def test_races_on_parents_never_lead_out(contained, workspace, outside):
    """Another program swaps the directory for a link to outside, over and over, while changes are applied into it."""
    os.mkdir(f"{workspace}/dir")
    os.symlink(outside, f"{workspace}/link")
    for i in range(40):
        put(f"{workspace}/dir/{i}", "host")
    put(f"{workspace}/dir/secret", "host")

    def command():
        for i in range(40):
            put(f"dir/{i}", "ours")
        put("dir/secret", "ours")

    runs = [ended(contained(command)) for _ in range(8)]
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            for old, new in (("dir", "aside"), ("link", "dir"), ("dir", "link"), ("aside", "dir")):
                try:
                    os.rename(f"{workspace}/{old}", f"{workspace}/{new}")
                except OSError:
                    pass

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for run in runs:
            try:
                apply(run, "dir", overwrite=True)
            except (OSError, UsageError):
                pass
    finally:
        stop.set()
        thread.join()


def test_a_name_taken_while_it_is_created(contained, workspace):
    run = ended(contained(lambda: put("file", "ours")))
    audit = AuditLog(f"{run.path}/audit.jsonl", run.id)
    work = open_apply(run, audit)
    original = type(work)._still_there

    def then_create(self, change, host_dir, name):
        original(self, change, host_dir, name)
        put(f"{workspace}/file", "theirs")

    type(work)._still_there = then_create
    try:
        done = work.write()
    finally:
        type(work)._still_there = original
    assert refusals(done) == [("file", "host_created")]
    assert recorded(run) == [("file", "host_created")]
    assert open(f"{workspace}/file").read() == "theirs"


@pytest.mark.parametrize("act", ["modify", "delete"])
def test_a_file_replaced_at_the_last_moment_is_put_back(contained, workspace, act):
    put(f"{workspace}/file", "host")
    run = ended(contained(lambda: put("file", "ours") if act == "modify" else os.unlink("file")))
    audit = AuditLog(f"{run.path}/audit.jsonl", run.id)
    work = open_apply(run, audit)
    original = type(work)._still_there

    def then_replace(self, change, host_dir, name):
        original(self, change, host_dir, name)
        put(f"{workspace}/new", "theirs")
        os.rename(f"{workspace}/new", f"{workspace}/file")

    type(work)._still_there = then_replace
    try:
        done = work.write()
    finally:
        type(work)._still_there = original
    assert refusals(done) == [("file", "host_changed")]
    assert open(f"{workspace}/file").read() == "theirs"
    assert os.listdir(workspace) == ["file"]


# -- sizes -------------------------------------------------------------------------------------------------------------------


def test_huge_names_deep_trees_and_huge_holes(contained, workspace):
    def command():
        put("n" * 255)
        os.mkdir("deep")
        for _ in range(300):
            os.chdir("deep" if os.path.isdir("deep") else "d")
            os.mkdir("d")
        with open("/proc/self/cwd/end", "w"):
            pass

    run = ended(contained(command))
    done = apply(run, skip=True)
    assert [why for _, why in refusals(done)] == ["too_deep"]
    assert os.path.exists(f"{workspace}/{'n' * 255}")


def test_a_huge_hole_stays_a_hole(contained, workspace):
    def command():
        with open("sparse", "wb") as file:
            file.truncate(1 << 40)
            file.seek(1 << 39)
            file.write(b"data")

    assert apply(ended(contained(command))).complete
    status = os.stat(f"{workspace}/sparse")
    assert status.st_size == 1 << 40
    assert status.st_blocks * 512 < 1 << 20


def test_many_names_of_one_file_in_a_memory_layer(contained, workspace):
    """Saved one by one they would be 1000 times the layer's size."""

    def command():
        with open("big", "wb") as file:
            file.write(b"x" * (8 << 20))
        for i in range(1000):
            os.link("big", f"l{i}")

    done = contained(command, require="enforced", disk_bytes=16 << 20)
    save_memory_layer(done.run, done.upper_fd)
    used = {os.stat(f"{upper(done.run)}/{n}").st_ino for n in os.listdir(upper(done.run))}
    assert len(used) == 1


# -- what an unprivileged caller's cell cannot do is said before -----------------------------------------------------------------


@root_only
def test_foreign_owners_are_named_to_a_caller_who_cannot_map_them(place, workspace):
    from saggar.isolation.workspace_scan_host import Scan

    put(f"{workspace}/theirs")
    os.mkdir(f"{workspace}/shared")
    os.chown(f"{workspace}/shared", 1000, 50)
    os.chmod(f"{workspace}/shared", 0o2775)
    os.chown(f"{workspace}/theirs", 1000, 1000)
    fd = os.open(workspace, os.O_RDONLY)
    scan = Scan(fd, ids=(0, 0))
    assert scan.run(10)
    found = {c.code: (c.count, c.paths) for c in scan.caveats()}
    assert found["setgid_directory"] == (1, ("shared/",))
    assert found["unmapped_owner"][0] == 2
    assert "EOVERFLOW" in str(scan.caveats()[0])
    scan.finish()
    os.close(fd)


# -- protected names that lead elsewhere ---------------------------------------------------------------------------------------


def test_hooks_behind_a_link_of_the_hosts(contained, workspace):
    """`.git/hooks` is a link: the kernel follows it inside, and the layer holds an innocent path."""
    os.makedirs(f"{workspace}/tools/hooks")
    os.makedirs(f"{workspace}/.git")
    os.symlink("../tools/hooks", f"{workspace}/.git/hooks")

    def command():
        put(".git/hooks/pre-commit", mode=0o755)
        put("tools/free")

    run = ended(contained(command))
    refused_and_recorded(run, ("tools/hooks/pre-commit", "git_hooks"), written=["tools/free"])
    assert os.listdir(f"{workspace}/tools/hooks") == []
    assert apply(run, allowed=(b"tools/hooks",)).complete


def test_hooks_path_of_the_configuration(contained, workspace):
    os.makedirs(f"{workspace}/.git")
    put(f"{workspace}/.git/config", "[core]\n\thooksPath = dev/hooks\n")

    def command():
        os.makedirs("dev/hooks")
        put("dev/hooks/pre-commit", mode=0o755)
        put("dev/free")

    done = apply(ended(contained(command)), skip=True)
    assert refusals(done) == [("dev/hooks", "git_hooks"), ("dev/hooks/pre-commit", "git_hooks")]
    assert os.listdir(f"{workspace}/dev") == ["free"]


def test_a_link_in_the_place_of_a_protected_parent(contained, workspace):
    """`.github -> evil`: the workflows that count would then be evil's."""
    os.makedirs(f"{workspace}/.git")
    put(f"{workspace}/.git/config", "[core]\n\thooksPath = dev/hooks\n")

    def command():
        os.makedirs("evil/workflows")
        os.makedirs("evil/hooks")
        put("evil/workflows/ci.yml")
        put("evil/hooks/pre-commit")
        os.symlink("evil", ".github")
        os.symlink("evil", "dev")

    done = apply(ended(contained(command)), skip=True)
    assert [p for p, _ in refusals(done)] == [".github", "dev"]
    assert not os.path.lexists(f"{workspace}/.github")
    assert not os.path.lexists(f"{workspace}/dev")


def test_replacing_what_is_above_a_protected_target(contained, workspace):
    os.makedirs(f"{workspace}/tools/hooks")
    os.makedirs(f"{workspace}/.git")
    os.symlink("../tools/hooks", f"{workspace}/.git/hooks")
    os.makedirs(f"{workspace}/evil/hooks")

    def command():
        shutil.rmtree("tools")
        os.symlink("evil", "tools")
        put("evil/hooks/pre-commit", mode=0o755)

    done = apply(ended(contained(command)), skip=True)
    assert ("tools", "git_hooks") in refusals(done)
    assert os.path.isdir(f"{workspace}/tools/hooks")
    assert not os.path.islink(f"{workspace}/tools")


# -- root applies into a directory of somebody else's --------------------------------------------------------------------------


@root_only
@pytest.mark.parametrize("kind", ["directory", "link", "mode"])
def test_root_gives_nothing_away_that_was_put_in_the_place(contained, workspace, kind):
    """The workspace's owner swaps what root has just made for a file of root's: its owner and mode stay root's."""
    os.chown(workspace, 1000, 1000)
    os.mkdir(f"{workspace}/there")
    os.chown(f"{workspace}/there", 1000, 1000)
    put(f"{workspace}/roots", "secret", 0o600)

    def command():
        if kind == "directory":
            os.mkdir("made")
        elif kind == "link":
            os.symlink("there", "made")
        else:
            os.chmod("there", 0o777)

    run = ended(contained(command))
    audit = AuditLog(f"{run.path}/audit.jsonl", run.id)
    work = open_apply(run, audit)
    made, settle = f"{workspace}/made", type(work)._settle_modes
    real = {"mkdir": os.mkdir, "symlink": os.symlink}

    def swap(name, call):
        def then(*args, **kw):
            call(*args, **kw)
            os.rename(made, f"{workspace}/aside")
            os.rename(f"{workspace}/roots", made)

        return then

    def swap_mode(self, host):
        os.rename(f"{workspace}/there", f"{workspace}/aside")
        os.rename(f"{workspace}/roots", f"{workspace}/there")
        settle(self, host)

    os.mkdir, os.symlink = swap("mkdir", os.mkdir), swap("symlink", os.symlink)
    if kind == "mode":
        type(work)._settle_modes = swap_mode
    try:
        done = work.write()
    finally:
        os.mkdir, os.symlink = real["mkdir"], real["symlink"]
        type(work)._settle_modes = settle
    assert done.refused or done.failed
    status = os.stat(f"{workspace}/there" if kind == "mode" else made)
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o600)
