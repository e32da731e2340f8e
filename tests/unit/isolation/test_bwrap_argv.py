"""The options that bubblewrap is given, whole."""

from inline_snapshot import snapshot

from saggar.isolation.bwrap_argv import SECCOMP_FD, STATUS_FD, Bind, Cell, options

CELL = Cell(
    system=["/usr"],
    links=[("usr/bin", "/bin")],
    files=[(0, "/etc/passwd")],
    masked_files=["/proc/kcore"],
    masked_directories=["/proc/acpi"],
    binds=[Bind("/tmp/m/0", "/srv/data"), Bind("/tmp/ws/workspace", "/home/u/project", writable=True)],
    cwd="/home/u/project/src",
)


def test_a_cell_in_full():
    assert options(CELL) == snapshot(
        [
            "--unshare-user",
            "--uid",
            "1000",
            "--gid",
            "1000",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
            "--hostname",
            "saggar",
            "--die-with-parent",
            "--json-status-fd",
            -1,
            "--seccomp",
            -2,
            "--ro-bind",
            "/usr",
            "/usr",
            "--symlink",
            "usr/bin",
            "/bin",
            "--perms",
            "0444",
            "--file",
            0,
            "/etc/passwd",
            "--dir",
            "/run",
            "--proc",
            "/proc",
            "--ro-bind",
            "/dev/null",
            "/proc/kcore",
            "--tmpfs",
            "/proc/acpi",
            "--remount-ro",
            "/proc/acpi",
            "--dev",
            "/dev",
            "--ro-bind",
            "/tmp/sys",
            "/sys",
            "--bind",
            "/tmp/tmp",
            "/tmp",
            "--bind",
            "/tmp/shm",
            "/dev/shm",
            "--bind",
            "/tmp/home",
            "/home/agent",
            "--ro-bind",
            "/tmp/m/0",
            "/srv/data",
            "--bind",
            "/tmp/ws/workspace",
            "/home/u/project",
            "--remount-ro",
            "/dev",
            "--remount-ro",
            "/",
            "--chdir",
            "/home/u/project/src",
        ]
    )


def test_descriptors_are_indexes_never_numbers():
    assert [o for o in options(CELL) if isinstance(o, int)] == [STATUS_FD, SECCOMP_FD, 0]


def test_the_root_is_read_only_after_everything_was_put_there():
    out = options(CELL)
    assert out[-6:] == ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/home/u/project/src"]


def test_later_binds_win():
    out = options(CELL)
    assert out.index("/home/u/project") > out.index("/srv/data") > out.index("/home/agent")


def test_no_new_session_and_no_network_of_bubblewraps_own():
    # job control needs the session; the network namespace is the child's, with the listeners in it
    assert not {"--new-session", "--unshare-net", "--share-net", "--unshare-all"} & {
        o for o in options(CELL) if isinstance(o, str)
    }
