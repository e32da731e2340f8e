"""`saggar run` on the real kernel: streams, exit codes, causes, what is seen inside."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SRC = str(Path(__file__).resolve().parents[2] / "src")


@pytest.fixture
def saggar(tmp_path):
    """Call the command line in an empty workspace; gives the finished process."""
    workspace = tmp_path / "work"
    workspace.mkdir()

    def call(*args, stdin=b"", cwd=workspace, env=None, **more):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "PYTHONPATH": SRC,
            "SAGGAR_STATE_DIR": str(tmp_path / "state"),
            **(env or {}),
        }
        return subprocess.run(
            [sys.executable, "-m", "saggar", *args],
            input=stdin,
            capture_output=True,
            cwd=cwd,
            env=environment,
            timeout=60,
            check=False,
            **more,
        )

    call.workspace = workspace
    call.home = tmp_path / "home"
    call.home.mkdir()
    return call


EXITS = [
    # command, exit code, stdout, text on stderr
    (["true"], 0, b"", b""),
    (["sh", "-c", "exit 7"], 7, b"", b""),
    (["sh", "-c", "kill -9 $$"], 137, b"", b""),
    (["sh", "-c", "kill -SEGV $$"], 139, b"", b""),
    (["no-such-program"], 127, b"", b"`no-such-program`: no such program in the cell"),
    (["./nothing"], 127, b"", b"`./nothing`: no such program in the cell"),
    (["cat"], 0, b"a\x00b\xff\n\n", b""),
    (["sh", "-c", "cat >&2"], 0, b"", b"a\x00b\xff\n\n"),
    (["id", "-un"], 0, b"agent\n", b""),
    (["hostname"], 0, b"saggar\n", b""),
]


@pytest.mark.parametrize(("command", "code", "out", "err"), EXITS)
def test_streams_and_exit_codes_pass_through(saggar, command, code, out, err):
    done = saggar("run", "--", *command, stdin=b"a\x00b\xff\n\n")
    assert (done.returncode, done.stdout) == (code, out), done.stderr
    assert err in done.stderr
    if not err:
        assert done.stderr == b""


UNSTARTABLE = [
    # command, exit code, cause, what the one line on stderr says
    ("./plain", 126, "not_executable", "`./plain`: the file is there, but it is not executable (`chmod +x ./plain`)"),
    ("./link", 126, "not_executable", "`./link`: the file is there, but it is not executable (`chmod +x ./link`)"),
    (
        "plain",
        126,
        "not_executable",
        "`plain`: the file is there, but it is not executable (`chmod +x WORK/bin/plain`)",
    ),
    ("./bin", 126, "not_executable", "`./bin`: is a directory, not a program"),
    ("/etc/passwd", 126, "not_executable", "`/etc/passwd`: the file is there, but it is not executable"),
    ("bin", 127, "not_found", "`bin`: no such program in the cell"),
    ("./dangling", 127, "not_found", "`./dangling`: no such program in the cell"),
    ("./plain/x", 127, "not_found", "`./plain/x`: no such program in the cell"),
    ("./script", 127, "not_found", "`./script`: its interpreter `/nowhere/sh` (first line) is not in the cell"),
    ("/root/x", 127, "not_found", "`/root/x`: no such program in the cell"),
]


@pytest.mark.parametrize(("command", "code", "cause", "line"), UNSTARTABLE)
def test_what_is_missing_is_127_and_what_cannot_be_executed_is_126(saggar, tmp_path, command, code, cause, line):
    work = saggar.workspace
    (work / "bin").mkdir()
    for name in ("plain", "bin/plain"):
        (work / name).write_text("#!/bin/sh\n")
    (work / "link").symlink_to("plain")
    (work / "dangling").symlink_to("nothing")
    (work / "script").write_text("#!/nowhere/sh -e\n")
    (work / "script").chmod(0o755)
    out = tmp_path / "result.json"
    done = saggar("run", "--json", str(out), "--", command, env={"PATH": f"{os.environ['PATH']}:{work}/bin:{work}"})
    assert done.stderr.decode() == f"saggar: {line.replace('WORK', str(work))}\n"
    assert (done.returncode, json.loads(out.read_text())["cause"]) == (code, cause)


BROKEN = [
    # name, exit code, cause, what the line on stderr says
    ("foreign", 126, "not_executable", "`./foreign`: cannot execute binary file: it is for another machine (s390x)"),
    ("cut", 126, "not_executable", "`./cut`: cannot execute binary file: it is not whole"),
    ("data", 126, "not_executable", "`./data`: cannot execute binary file"),
    ("loop", 126, "not_executable", "`./loop`: too many levels of symbolic links"),
    ("beside", 127, "not_found", "`./beside`: its interpreter `./nothing` (first line) is not in the cell"),
    (
        "loader",
        127,
        "not_found",
        "WORK/loader` could not be executed: its loader `/lib64/ld-nowhere.so.1` is not in the cell",
    ),
    ("busy", 126, "not_executable", "WORK/busy` could not be executed: it is open for writing (text file busy)"),
]


@pytest.mark.parametrize(("name", "code", "cause", "line"), BROKEN)
def test_what_the_kernel_does_not_execute_is_126_and_no_shell_gets_it(saggar, tmp_path, name, code, cause, line):
    if any(n not in {"register", "status"} for n in _handlers()) and name in {"foreign", "cut", "data"}:
        pytest.skip("this host has handlers of formats that are not its own")
    work, out = saggar.workspace, tmp_path / "result.json"
    (work / "loop").symlink_to("loop")
    for path, content in _programs().items():
        (work / path).write_bytes(content)
        (work / path).chmod(0o755)
    with (work / "busy").open("r+b"):
        command = ["run", "--workspace", f"{work}:read-write", "--json", str(out), "--", f"./{name}"]
        done = saggar(*command)
    assert (done.returncode, json.loads(out.read_text())["cause"]) == (code, cause), done.stderr
    assert done.stderr.decode().rstrip("\n").endswith(line.replace("WORK", str(work)))


def _handlers():
    try:
        return os.listdir("/proc/sys/fs/binfmt_misc")
    except OSError:
        return []


def _programs():
    real = Path("/usr/bin/true").read_bytes()
    loader = b"/lib64/ld-nowhere.so.1\0"
    # a program header of 56 bytes after the file header of 64, as far as the kernel reads
    header = real[:32] + (64).to_bytes(8, "little") + real[40:56] + (1).to_bytes(2, "little") + real[58:64]
    interp = (3).to_bytes(4, "little") + (4).to_bytes(4, "little") + (120).to_bytes(8, "little") + bytes(16)
    interp += len(loader).to_bytes(8, "little") * 2 + bytes(8)
    return {
        "foreign": real[:18] + (22).to_bytes(2, "little") + real[20:],
        "cut": real[:40],
        "data": b"MZ\0\0" * 64,
        "beside": b"#!./nothing\n",
        "loader": header + interp + loader,
        "busy": real,
    }


@pytest.mark.skipif(os.getuid() != 0, reason="root: only its cell is another user than the one who asks")
def test_a_program_of_the_workspace_that_only_another_user_may_execute_is_126(saggar):
    script = saggar.workspace / "own"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o700)
    os.chown(saggar.workspace, 1000, 1000)
    done = saggar("run", "--", "./own")
    assert (done.returncode, done.stderr) == (
        126,
        b"saggar: `./own`: the file is there, but it is not executable (`chmod +x ./own`)\n",
    )


@pytest.mark.parametrize(("script", "said"), [("installed-there", True), ("exit 1", False), ("true", False)])
def test_what_the_tool_chain_left_out_is_said_when_a_program_is_missed(saggar, tmp_path, script, said):
    """An environment that is active on the host and lies outside the workspace is not shown to a shell; its programs are missed."""
    environment = saggar.home / "other"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", environment], check=True)
    out = tmp_path / "result.json"
    path = f"{environment}/bin:{os.environ['PATH']}"
    done = saggar("run", "--json", str(out), "--", "sh", "-c", script, env={"PATH": path})
    assert str(environment) in json.loads(out.read_text())["enforcement"]["left_out"][0]
    last = (done.stderr.splitlines() or [b""])[-1].decode()
    assert (last.startswith("saggar: not shown in the cell: ") and str(environment) in last) == said


def test_a_timeout_ends_the_whole_tree_and_keeps_what_was_written(saggar, tmp_path):
    out = tmp_path / "result.json"
    script = "echo before; setsid sleep 3210 & sleep 3210"
    done = saggar("run", "--timeout", "700ms", "--json", str(out), "--", "sh", "-c", script)
    assert done.returncode == 6
    assert done.stdout == b"before\n"
    result = json.loads(out.read_text())
    assert (result["cause"], result["exit_code"]) == ("timeout", None)
    assert b"3210" not in _command_lines()


def test_a_background_child_that_holds_stdout_does_not_keep_run_from_returning(saggar):
    done = saggar("run", "--", "sh", "-c", "sleep 3211 & echo done")
    assert (done.returncode, done.stdout) == (0, b"done\n")
    assert b"3211" not in _command_lines()


def test_the_environment_is_four_variables(saggar):
    done = saggar("run", "--", "env", env={"SECRET": "hunter2"})
    names = {line.split(b"=")[0] for line in done.stdout.splitlines()}
    assert names - {b"PWD", b"SHLVL", b"_"} == {b"PATH", b"HOME", b"LANG", b"TERM"}


def test_variables_of_flags_arrive_and_the_loaders_do_not_meet_bubblewrap(saggar):
    done = saggar(
        "run", "--env", "A=b c", "--env", "LD_LIBRARY_PATH=/x", "--", "sh", "-c", 'echo "$A $LD_LIBRARY_PATH"'
    )
    assert done.stdout == b"b c /x\n"


def test_the_workspace_is_a_copy(saggar):
    (saggar.workspace / "kept").write_text("old")
    done = saggar("run", "--", "sh", "-c", "cat kept; echo new > kept; echo x > made; cat kept; pwd")
    assert done.stdout == b"oldnew\n" + os.fsencode(saggar.workspace) + b"\n"
    assert (saggar.workspace / "kept").read_text() == "old"
    assert [p.name for p in saggar.workspace.iterdir()] == ["kept"]


MODES = [
    ("read-only", "echo x > made", 2, []),
    ("read-write", "echo x > made", 0, ["made"]),
    ("none", "test $PWD = /home/agent && echo x > made", 0, []),
]


@pytest.mark.parametrize(("mode", "script", "code", "names"), MODES)
def test_workspace_modes(saggar, mode, script, code, names):
    done = saggar("run", "--workspace", f"{saggar.workspace}:{mode}", "--", "sh", "-c", script)
    assert (done.returncode, [p.name for p in saggar.workspace.iterdir()]) == (code, names), done.stderr
    if names:
        status = (saggar.workspace / "made").stat()
        assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())


def test_nothing_of_the_home_or_of_tmp_is_there(saggar, tmp_path):
    (saggar.home / "key").write_text("secret")
    done = saggar("run", "--", "cat", str(saggar.home / "key"))
    assert done.returncode == 1
    assert saggar("run", "--", "ls", "-A", "/home/agent", "/root", "/sys", "/run").stdout.count(b"key") == 0


REFUSED = [
    # arguments, exit code, text
    (["run"], 2, b"no command was given"),
    (["run", "--frobnicate", "--", "true"], 2, b"unknown option `--frobnicate`"),
    (["run", "--workspace", "/", "--", "true"], 2, b"the workspace is `/`"),
    (["run", "--workspace", "/nonexistent", "--", "true"], 2, b"does not exist"),
    (["run", "--tier", "microvm", "--", "true"], 4, b"cannot be reached"),
]


@pytest.mark.parametrize(("args", "code", "text"), REFUSED)
def test_bad_input_starts_nothing(saggar, args, code, text):
    done = saggar(*args)
    assert done.returncode == code
    assert text in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_home_as_workspace_is_refused(saggar):
    done = saggar("run", "--", "true", cwd=saggar.home)
    assert done.returncode == 2
    assert b"home directory" in done.stderr


def _command_lines():
    lines = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            continue
    return b"\n".join(lines)


@pytest.mark.parametrize("top", ["/var/tmp", "/tmp", "/dev/shm"])
def test_a_workspace_below_a_directory_that_the_cell_has_of_its_own(saggar, top):
    with tempfile.TemporaryDirectory(dir=top) as place:
        os.chmod(place, 0o755)
        work = f"{place}/work"
        os.mkdir(work)
        done = saggar("run", "--", "sh", "-c", "pwd; echo x > made", cwd=work)
        assert (done.returncode, done.stdout) == (0, os.fsencode(work) + b"\n"), done.stderr
        assert os.listdir(work) == []


def test_a_result_that_cannot_be_written_costs_no_run(saggar):
    done = saggar("run", "--json", "/nonexistent/result", "--workspace", ".:read-write", "--", "touch", "ran")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"the result cannot be written to `/nonexistent/result`" in done.stderr
    assert not (saggar.workspace / "ran").exists()


def test_a_link_put_in_the_place_of_the_result_is_not_followed(saggar, tmp_path):
    """In a read-write workspace the command owns the name: the trusted side must not look it up again afterwards."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    done = saggar(
        "run", "--json", "out.json", "--workspace", ".:read-write", "--", "ln", "-sfn", str(victim), "out.json"
    )
    assert done.returncode == 0, done.stderr
    assert victim.read_text() == "untouched"


@pytest.mark.parametrize("how", ["link", "dangling", "directory", "fifo"])
def test_what_an_earlier_cell_left_in_the_place_of_the_result_is_not_followed(saggar, tmp_path, how):
    victim, new = tmp_path / "victim", tmp_path / "made"
    victim.write_text("untouched")
    (tmp_path / "out").write_text("untouched")
    made = {
        "link": f"ln -s {victim} out",
        "dangling": f"ln -s {new} out",
        "directory": f"ln -s {tmp_path} d",
        "fifo": "mkfifo out",
    }[how]
    assert saggar("run", "--workspace", ".:read-write", "--", "sh", "-c", made).returncode == 0
    out = "d/out" if how == "directory" else "out"
    for path in (out, str(saggar.workspace / out)):
        done = saggar("run", "--json", path, "--workspace", f"{saggar.workspace}:read-only", "--", "true")
        assert done.returncode == 2, done.stderr
    assert victim.read_text() == (tmp_path / "out").read_text() == "untouched"
    assert not new.exists()


def test_a_result_goes_to_standard_output_and_to_files_of_the_workspace(saggar):
    with open(saggar.workspace / "shown", "w") as shown:
        subprocess.run(
            [sys.executable, "-m", "saggar", "run", "--json", "/dev/stdout", "--", "true"],
            stdout=shown,
            cwd=saggar.workspace,
            env={"PATH": os.environ["PATH"], "HOME": str(saggar.home), "PYTHONPATH": SRC},
            timeout=60,
            check=True,
        )
    assert json.loads((saggar.workspace / "shown").read_text())["cause"] == "exit"
    for _ in range(2):
        assert saggar("run", "--json", "out.json", "--", "true").returncode == 0
    assert json.loads((saggar.workspace / "out.json").read_text())["cause"] == "exit"
    read, write = os.pipe()
    with open(read) as text:
        done = saggar("run", "--json", f"/dev/fd/{write}", "--", "true", pass_fds=[write])
        os.close(write)
        assert (done.returncode, json.loads(text.read())["cause"]) == (0, "exit")


@pytest.mark.parametrize("where", ["policy", "flag", "none"])
def test_a_registry_is_asked_for_with_the_workspace_of_the_policy(saggar, tmp_path, where):
    """The tool lies in the workspace that the policy file names, which is not the current directory."""
    other, ran = tmp_path / "other", tmp_path / "ran"
    place = saggar.workspace if where == "none" else other
    other.mkdir()
    (place / "npm").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (place / "npm").chmod(0o755)
    file = tmp_path / "saggar.toml"
    file.write_text(f'[workspace]\npath = "{other}"\n' if where == "policy" else "")
    flags = {"policy": [], "flag": ["--workspace", f"{other}:read-only"], "none": ["--workspace", ":none"]}[where]
    done = saggar(
        "run", "--policy", str(file), *flags, "--allow", "registry:npm", "--", "true", env={"PATH": str(place)}
    )
    assert done.returncode == 2
    assert b"there is none outside the workspace" in done.stderr, done.stderr
    assert not ran.exists()


def test_a_result_for_a_device(saggar):
    """A device can be seekable, and nothing there can be cut."""
    done = saggar("run", "--json", "/dev/null", "--", "sh", "-c", "exit 3")
    assert (done.returncode, done.stderr) == (3, b"")
    done = saggar("run", "--json", "/dev/full", "--", "sh", "-c", "exit 3")
    assert (done.returncode, done.stderr) == (
        3,
        b"saggar: the result could not be written to `/dev/full`: No space left on device\n",
    )


def test_a_workspace_that_its_user_cannot_enter(saggar):
    """Root can open it, and its cell's user is not root."""
    closed = saggar.workspace / "closed"
    closed.mkdir()
    closed.chmod(0)
    try:
        done = saggar("run", "--workspace", str(closed), "--", "true")
    finally:
        closed.chmod(0o700)
    assert done.returncode == 2
    assert f"the workspace `{closed}` cannot be read by".encode() in done.stderr
    assert saggar("run", "--workspace", str(closed), "--", "true").returncode == 0
