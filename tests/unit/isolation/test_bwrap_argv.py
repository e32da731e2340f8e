"""The options that bubblewrap is given, whole."""

from inline_snapshot import snapshot

from saggar.isolation.bwrap_argv import SECCOMP_FD, STATUS_FD, options


def test_a_cell_in_full():
    assert options((1000, 1000), "/home/u/project/src") == snapshot(
        [
            "--unshare-user",
            "--uid",
            "1000",
            "--gid",
            "1000",
            "--die-with-parent",
            "--json-status-fd",
            -1,
            "--seccomp",
            -2,
            "--dev-bind",
            "/cell",
            "/",
            "--chdir",
            "/home/u/project/src",
        ]
    )


def test_descriptors_are_indexes_never_numbers():
    assert [o for o in options((1, 1), "/") if isinstance(o, int)] == [STATUS_FD, SECCOMP_FD]


def test_no_new_session_and_no_namespace_of_bubblewraps_own_but_users_and_mounts():
    # job control needs the session; the others are the child's, with the listeners and the first process in them
    words = {o for o in options((1000, 1000), "/") if isinstance(o, str)}
    assert not {"--new-session", "--unshare-net", "--share-net", "--unshare-all", "--unshare-pid"} & words
