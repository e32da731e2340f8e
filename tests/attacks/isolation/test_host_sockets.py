"""A host program's Unix sockets are out of reach, in every workspace mode and through every granted directory."""

import json
import os
import shutil
import socket

import pytest

import saggar
from saggar.policy.model import IsolationPolicy, Policy, WorkspacePolicy

STREAM = """
import socket, sys
try:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM); s.connect(sys.argv[1]); print("reached")
except OSError as e:
    print("refused", e.errno)
"""
#: a pair needs no name, but a datagram socket of a pair can be sent to any
DATAGRAM = """
import socket, sys
try:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b"x", sys.argv[1]); print("reached")
except OSError as e:
    print("refused", e.errno)
"""
EPERM, EACCES, ECONNREFUSED = 1, 13, 111
MODES = ["copy-on-write", "read-only", "read-write"]


@pytest.fixture
def listening(tmp_path, monkeypatch):
    """A directory with a stream and a datagram socket that this process listens on, open to everybody."""
    shown = tmp_path / "shown"
    shown.mkdir()
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(shown)
    sockets = {}
    for name, kind in (("stream", socket.SOCK_STREAM), ("datagram", socket.SOCK_DGRAM)):
        made = socket.socket(socket.AF_UNIX, kind)
        made.bind(name)
        os.chmod(name, 0o777)
        made.setblocking(False)
        sockets[name] = made
    sockets["stream"].listen(4)
    yield shown, sockets
    for made in sockets.values():
        made.close()


def outcome(script, path, policy):
    result = saggar.run_sync(["python3", "-c", script, str(path)], policy)
    assert result.cause == "exit", result
    with open(result.audit_path) as log:
        records = [json.loads(line) for line in log]
    assert [r["kind"] for r in records][:1] == ["run.start"]
    assert records[-1]["kind"] == "run.end"
    return result.stdout.split()[0].decode(), int(result.stdout.split()[-1]), result


def assert_nobody_came(sockets):
    with pytest.raises(BlockingIOError):
        sockets["stream"].accept()
    with pytest.raises(BlockingIOError):
        sockets["datagram"].recv(1)


def test_the_sockets_answer_outside(listening):
    shown, sockets = listening
    exec(STREAM.replace("sys.argv[1]", repr(str(shown / "stream"))))
    exec(DATAGRAM.replace("sys.argv[1]", repr(str(shown / "datagram"))))
    sockets["stream"].accept()[0].close()
    assert sockets["datagram"].recv(1) == b"x"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("script", "name"), [(STREAM, "stream"), (DATAGRAM, "datagram")], ids=["stream", "datagram"])
def test_a_socket_in_the_workspace_is_out_of_reach(listening, mode, script, name):
    shown, sockets = listening
    policy = Policy(workspace=WorkspacePolicy(mode=mode))
    said, errno, result = outcome(script, shown / name, policy)
    assert (said, errno) == ("refused", EPERM if mode == "read-write" else ECONNREFUSED)
    assert result.enforcement["unix_sockets"] == ("connected pairs" if mode == "read-write" else "the cell's own")
    assert_nobody_came(sockets)


@pytest.mark.parametrize(("script", "name"), [(STREAM, "stream"), (DATAGRAM, "datagram")], ids=["stream", "datagram"])
def test_a_socket_in_a_granted_directory_is_out_of_reach(listening, script, name):
    shown, sockets = listening
    policy = Policy(isolation=IsolationPolicy(read=(str(shown),)), workspace=WorkspacePolicy(mode="none"))
    said, errno, _ = outcome(script, shown / name, policy)
    assert (said, errno) == ("refused", ECONNREFUSED)
    assert_nobody_came(sockets)


def test_a_socket_itself_is_no_grant(listening):
    shown, _ = listening
    policy = Policy(isolation=IsolationPolicy(read=(str(shown / "stream"),)))
    with pytest.raises(saggar.UsageError, match="neither a directory nor a regular file"):
        saggar.run_sync(["true"], policy)


@pytest.mark.parametrize("mode", ["copy-on-write", "read-only", "none"])
def test_the_cells_own_sockets_work(listening, mode):
    policy = Policy(workspace=WorkspacePolicy(mode=mode))
    script = (
        "import socket; l = socket.socket(socket.AF_UNIX); l.bind('/tmp/own'); l.listen(1); "
        "c = socket.socket(socket.AF_UNIX); c.connect('/tmp/own'); print('ok')"
    )
    assert saggar.run_sync(["python3", "-c", script], policy).stdout == b"ok\n"


def test_pairs_of_streams_work_beside_a_read_write_workspace(listening):
    policy = Policy(workspace=WorkspacePolicy(mode="read-write"))
    script = "import socket; a, b = socket.socketpair(); a.send(b'ok'); print(b.recv(2).decode())"
    assert saggar.run_sync(["python3", "-c", script], policy).stdout == b"ok\n"


@pytest.mark.skipif(not shutil.which("node"), reason="no node on this host")
def test_node_starts_children_beside_a_read_write_workspace(listening):
    policy = Policy(workspace=WorkspacePolicy(mode="read-write"))
    script = "require('child_process').exec('echo ok', (e, o) => console.log(o.trim()))"
    assert saggar.run_sync(["node", "-e", script], policy).stdout == b"ok\n"
