import errno
import os
import shutil

import pytest


def outcome_of(function):
    """Errno name of `function`, or "ok"; for use inside the cell, written to stdout's stead: an exception."""
    try:
        function()
    except OSError as e:
        return errno.errorcode[e.errno]
    return "ok"


def expect(**cases):
    """A cell command that runs each case and fails unless its outcome is as said."""

    def command():
        wrong = {}
        for name, (function, wanted) in cases.items():
            got = outcome_of(function)
            if got != wanted:
                wrong[name] = (got, wanted)
        if wrong:
            raise AssertionError(wrong)

    return command


def fill(workspace):
    os.makedirs(f"{workspace}/dir/sub")
    with open(f"{workspace}/dir/file", "w") as file:
        file.write("before")


def write(path, text="after"):
    def act():
        with open(path, "w") as file:
            file.write(text)

    return act


@pytest.mark.parametrize("require", ["any", "enforced"])
def test_copy_on_write_changes_nothing_outside(contained, workspace, require):
    fill(workspace)
    done = contained(
        expect(
            write=(write("dir/file"), "ok"),
            new=(write("new"), "ok"),
            remove=(lambda: shutil.rmtree("dir"), "ok"),
            again=(lambda: os.mkdir("dir"), "ok"),
            device=(lambda: os.mknod("dev", 0o20600, os.makedev(1, 3)), "EPERM"),
            whiteout=(lambda: os.mknod("white", 0o20600, 0), "EPERM"),
            opaque=(lambda: os.setxattr("dir", b"trusted.overlay.opaque", b"y"), "EPERM"),
        ),
        require=require,
    )
    assert (done.status, done.error) == (0, "")
    assert done.layer == ("memory" if require == "enforced" else "disk")
    assert os.listdir(workspace) == ["dir"]
    assert open(f"{workspace}/dir/file").read() == "before"
    if require == "enforced":
        assert sorted(os.listdir(done.upper_fd)) == ["dir", "new"]
        os.close(done.upper_fd)
        assert os.listdir(f"{done.run.path}/layer/upper") == []
    else:
        assert sorted(os.listdir(f"{done.run.path}/layer/upper")) == ["dir", "new"]


def test_a_memory_layer_has_its_size(contained, workspace):
    def command():
        with open("big", "wb") as file, pytest.raises(OSError, match="No space"):
            for _ in range(64):
                file.write(b"\0" * (1 << 20))
                file.flush()

    done = contained(command, require="enforced", disk_bytes=8 << 20)
    assert (done.status, done.error) == (0, "")
    os.close(done.upper_fd)


@pytest.mark.parametrize(("mode", "wanted"), [("read-only", "EROFS"), ("read-write", "ok")])
def test_read_only_and_read_write(contained, workspace, mode, wanted):
    fill(workspace)
    done = contained(expect(write=(write("dir/file"), wanted), new=(write("new"), wanted)), mode=mode)
    assert (done.status, done.error) == (0, "")
    assert open(f"{workspace}/dir/file").read() == ("after" if wanted == "ok" else "before")
    if wanted == "ok":
        assert os.stat(f"{workspace}/new").st_uid == os.geteuid()


@pytest.mark.parametrize("mode", ["copy-on-write", "read-only", "read-write"])
def test_the_policy_file_is_read_only_in_every_mode(contained, workspace, mode):
    os.makedirs(f"{workspace}/conf/deep")
    write(f"{workspace}/conf/deep/saggar.toml", "policy")()
    ro = mode == "read-only"
    done = contained(
        expect(
            write=(write("conf/deep/saggar.toml"), "EROFS"),
            unlink=(lambda: os.unlink("conf/deep/saggar.toml"), "EROFS" if ro else "EBUSY"),
            replace=(lambda: (write("x")(), os.rename("x", "conf/deep/saggar.toml")), "EROFS" if ro else "EXDEV"),
            move_parent=(lambda: os.rename("conf/deep", "conf/other"), "EROFS" if ro else "EBUSY"),
            move_grandparent=(lambda: os.rename("conf", "other"), "EROFS" if ro else "EBUSY"),
            read=(lambda: open("conf/deep/saggar.toml").read(), "ok"),
        ),
        mode=mode,
        file=f"{workspace}/conf/deep/saggar.toml",
    )
    assert (done.status, done.error) == (0, "")
    assert open(f"{workspace}/conf/deep/saggar.toml").read() == "policy"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make files of several owners")
def test_a_root_callers_cell_maps_every_owner(contained, workspace):
    """No EOVERFLOW: the lower layer comes through an idmapped clone, the layer is owned by the cell's host ids."""
    fill(workspace)
    os.chown(f"{workspace}/dir/file", 1234, 99)
    os.chmod(f"{workspace}/dir/file", 0o666)
    os.mkdir(f"{workspace}/shared")
    os.chown(f"{workspace}/shared", 0, 50)
    os.chmod(f"{workspace}/shared", 0o2775)

    def command():
        write("dir/file")()
        write("shared/new")()
        assert (os.stat("dir/file").st_uid, os.stat("dir/file").st_gid) == (1234, 99)
        assert os.stat("shared/new").st_gid == 50

    done = contained(command)
    assert (done.status, done.error) == (0, "")
    assert [c.code for c in done.workspace.caveats] == ["rename_directory"]
    upper = os.stat(f"{done.run.path}/layer/upper/dir/file")
    assert (upper.st_uid, upper.st_gid) == (0x70000000 + 1234, 0x70000000 + 99)


def test_renaming_a_lower_directory_is_exdev_and_named(contained, workspace):
    fill(workspace)
    done = contained(
        expect(rename=(lambda: os.rename("dir", "other"), "EXDEV"), move=(lambda: shutil.move("dir", "other"), "ok"))
    )
    assert (done.status, done.error) == (0, "")
    assert "rename_directory" in [c.code for c in done.workspace.caveats]


def test_a_path_with_colons_and_commas(place, state, settle):
    from saggar.policy.model import Policy, WorkspacePolicy
    from saggar.testing.workspace_cell import run_in_workspace

    odd = f"{place}/a:b,c\\d e"
    os.makedirs(f"{odd}/ws")
    os.mkdir(f"{place}/scratch")
    done = run_in_workspace(
        state,
        Policy(workspace=WorkspacePolicy(path=f"{odd}/ws")),
        expect(new=(write("new"), "ok")),
        scratch=f"{place}/scratch",
    )
    assert (done.status, done.error) == (0, "")
