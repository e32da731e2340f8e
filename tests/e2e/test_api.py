"""The Python API on the real kernel: captures, causes, live processes, cancellation."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

import saggar
from saggar.core.errors import UsageError
from saggar.isolation.state_host import ENDED, open_state
from saggar.policy.model import LimitsPolicy, Policy

MIB = 1024 * 1024
#: ends the durations by which a test knows its own cells' processes
OWN = f"{os.getpid():07d}"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return work


ENDS = [
    # command, cause, exit code, signal, status, stdout
    (["true"], "exit", 0, 0, 0, b""),
    ("echo a; exit 3", "exit", 3, 0, 3, b"a\n"),
    ("kill -TERM $$", "signal", None, 15, 143, b""),
    (["no-such-program"], "not_found", None, 0, 127, b""),
    ("printf 'a\\000\\377\\n\\n'", "exit", 0, 0, 0, b"a\x00\xff\n\n"),
    ("cat <<EOF\nx\nEOF\nexec echo y", "exit", 0, 0, 0, b"x\ny\n"),
]


@pytest.mark.parametrize(("command", "cause", "code", "number", "status", "out"), ENDS)
def test_how_it_ended(command, cause, code, number, status, out):
    result = saggar.run_sync(command)
    assert (result.cause, result.exit_code, result.signal, result.status) == (cause, code, number, status)
    assert result.stdout == out
    assert result.ok is (status == 0)


def test_the_result_says_what_held(tmp_path):
    result = saggar.run_sync(["true"])
    assert set(result.limits) >= {"memory", "tasks", "cpu", "disk", "timeout"}
    assert {v["held"] for v in result.limits.values()} <= {"enforced", "watchdog"}
    assert result.enforcement["tier"] == "process"
    assert len(result.audit_head) == 64
    assert result.run_id in result.audit_path


def test_stdin_is_at_its_end_unless_written_to():
    assert saggar.run_sync(["cat"], timeout_s=10).stdout == b""


def test_28_mib_of_stdin():
    result = saggar.run_sync(["wc", "-c"], input=b"x" * (28 * MIB))
    assert result.stdout.strip() == str(28 * MIB).encode()


def test_a_very_large_argv():
    words = ["x"] * 20_000
    result = saggar.run_sync(["sh", "-c", "echo $#", "sh", *words])
    assert (result.cause, result.stdout) == ("exit", b"20000\n")


def test_one_huge_argument():
    result = saggar.run_sync(["sh", "-c", "echo ${#1}", "sh", "x" * 120_000])
    assert result.stdout == b"120000\n"


def test_arguments_that_are_too_long_are_said():
    result = saggar.run_sync(["true", "x" * 140_000])
    assert (result.cause, result.status, result.stderr) == ("not_executable", 126, b"")
    assert result.message == "`true`: the argument list is too long"


def test_thousands_of_odd_variables():
    variables = tuple((f"V{i}", "ünï\tx") for i in range(4000))
    policy = Policy().replace(environment=Policy().environment.replace(set=variables))
    result = saggar.run_sync("env | grep -c ^V; echo $V3999", policy)
    assert result.stdout == "4000\nünï x\n".encode()


def test_head_tail_and_true_counts():
    result = saggar.run_sync("seq 1 100000; echo end", keep_bytes=1000)
    assert result.stdout_bytes == 588895 + 4
    assert len(result.stdout) == 1000
    assert result.stdout.startswith(b"1\n2\n3\n")
    assert result.stdout.endswith(b"100000\nend\n")


def test_an_output_flood_ends_with_its_cause():
    policy = Policy(limits=LimitsPolicy(output_bytes=MIB))
    result = saggar.run_sync("yes", policy)
    assert result.cause == "output"
    assert len(result.stdout) <= MIB < result.stdout_bytes
    assert result.status == 6


def test_both_pipes_are_drained_at_once():
    script = "import os\nfor _ in range(64): os.write(2, b'e' * 65536); os.write(1, b'o' * 65536)"
    result = saggar.run_sync(["python3", "-c", script])
    assert (result.stdout_bytes, result.stderr_bytes) == (4 * MIB, 4 * MIB)


def test_partial_output_survives_a_timeout():
    result = saggar.run_sync("echo out; echo err >&2; sleep 3212", timeout_s=0.7)
    assert (result.cause, result.stdout, result.stderr) == ("timeout", b"out\n", b"err\n")
    assert result.duration_s < 5


def test_the_command_is_not_pid_1_and_zombies_are_reaped():
    script = "for i in 1 2 3 4 5; do (sleep 0.01 &) ; done; sleep 0.3; echo $$; ps -A -o stat= | grep -c Z"
    out = saggar.run_sync(script).stdout.split()
    assert int(out[0]) > 1
    assert out[1] == b"0"


DEVICES = "null zero full random urandom tty ptmx pts shm fd stdin stdout stderr"


def test_the_devices_that_programs_expect():
    result = saggar.run_sync(
        f"for d in {DEVICES}; do test -e /dev/$d || echo $d; done; echo x > /dev/stdout; echo y > /dev/stderr"
    )
    assert (result.stdout, result.stderr) == (b"x\n", b"y\n")


def test_a_pty_can_be_made_inside():
    result = saggar.run_sync(["python3", "-c", "import pty; pty.spawn(['tty'])"])
    assert result.stdout.startswith(b"/dev/pts/"), result.stderr


def test_a_live_process():
    async def main():
        async with await saggar.spawn(["sh", "-c", 'read a; echo "got $a"; read b; echo "$b" >&2; exit 5']) as process:
            process.stdin.write(b"one\n")
            assert await process.stdout.readline() == b"got one\n"
            process.stdin.write(b"two\n")
            process.stdin.close()
            assert await process.stderr.read() == b"two\n"
            result = await process.wait()
        assert (result.cause, result.exit_code) == ("exit", 5)

    asyncio.run(main())


def test_signals_reach_the_command():
    async def main():
        script = "trap 'echo term; exit 4' TERM; trap 'echo usr' USR1; echo up; while :; do sleep 0.05; done"
        async with await saggar.spawn(script) as process:
            assert await process.stdout.readline() == b"up\n"
            process.send_signal(signal.SIGUSR1)
            assert await process.stdout.readline() == b"usr\n"
            process.terminate()
            assert await process.stdout.readline() == b"term\n"
            assert (await process.wait()).exit_code == 4

    asyncio.run(main())


def test_leaving_the_block_ends_the_cell():
    async def main():
        async with await saggar.spawn(f"sleep 3213.{OWN} & sleep 3213.{OWN}") as process:
            pass
        assert process.result.cause == "cancelled"

    asyncio.run(main())
    assert not _running(3213)


def test_cancelling_ends_the_cell_before_it_returns():
    async def main():
        task = asyncio.create_task(saggar.run(f"echo x; setsid sleep 3214.{OWN} & sleep 3214.{OWN}"))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not _running(3214)


@pytest.mark.parametrize("start", [saggar.run, saggar.spawn])
def test_cancelled_at_any_moment_nothing_is_left(tmp_path, start):
    """While it is being prepared as well: a thread does that, and what it made belongs to nobody then."""
    saggar.run_sync(["true"])

    async def one(delay):
        task = asyncio.create_task(start(["sleep", f"3215.{OWN}"]))
        await asyncio.sleep(delay)
        task.cancel()
        try:
            process = await task
        except asyncio.CancelledError:
            return
        async with process:
            pass

    async def main():
        for moment in range(30):
            await one(moment * 0.001)

    asyncio.run(main())
    assert not _running(3215)
    for run in open_state({"SAGGAR_STATE_DIR": str(tmp_path / "state")}).runs():
        assert (run.state(), run.acquire()) == (ENDED, True)


def test_many_at_once():
    async def main():
        return await asyncio.gather(*[saggar.run(["sh", "-c", f"exit {i}"]) for i in range(10)])

    assert [r.exit_code for r in asyncio.run(main())] == list(range(10))


def test_a_killed_launcher_is_said_and_replaced():
    from saggar.runtime.engine_host import engine

    async def main():
        async with await saggar.spawn(f"echo up; sleep 3215.{OWN}") as process:
            await process.stdout.readline()
            for pid in _children(os.getpid()):
                if b"launcher_host" in _cmdline(pid):
                    os.kill(pid, signal.SIGKILL)
            return await process.wait()

    first = engine()
    assert asyncio.run(main()).cause == "launcher_died"
    assert saggar.run_sync(["true"]).ok
    assert engine() is not first
    assert not _running(3215)


#: a process of its own, whose launcher is killed so many seconds after it was spawned; says how its first run ended, and its second
DYING = """
import asyncio, glob, json, os, signal, sys, threading, time
import saggar
from saggar.runtime import api_host, engine_host

delay, how = float(sys.argv[1]), sys.argv[2]
real = os.posix_spawn
def dying(*args, **more):
    os.posix_spawn = real
    pid = real(*args, **more)
    def end():
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    end() if not delay else threading.Thread(target=end).start()
    return pid
os.posix_spawn = dying
signal.alarm(20)

async def spawned():
    async with await saggar.spawn("sleep 0.2; exit 5") as process:
        return await process.wait()

def once():
    if how == "run_sync":
        return saggar.run_sync("sleep 0.2; exit 5")
    return asyncio.run(saggar.run("sleep 0.2; exit 5") if how == "run" else spawned())

if delay >= 1:
    # between preparing and starting, for certain
    prepare, delay = api_host.Prepared, 0
    def late(*args):
        prepared = prepare(*args)
        engine = engine_host.engine()
        for pid in [p for name in glob.glob("/proc/self/task/*/children") for p in open(name).read().split()]:
            os.kill(int(pid), signal.SIGKILL)
        engine._thread.join()
        api_host.Prepared = prepare
        return prepared
    os.posix_spawn = real
    api_host.Prepared = late
first, second = once(), once()
for result in (first, second):
    kinds = [(r["kind"], r["reason"]) for r in map(json.loads, open(result.audit_path))]
    assert kinds[0] == ("run.start", "requested") and kinds[-1] == ("run.end", result.cause), kinds
print(first.cause, first.exit_code, second.cause, second.exit_code)
"""


@pytest.mark.parametrize("how", ["run", "run_sync", "spawn"])
@pytest.mark.parametrize("delay", [0, 0.005, 0.01, 0.03, 0.05, 1])
def test_a_launcher_killed_at_any_moment_leaves_nobody_waiting(how, delay):
    src = os.path.dirname(os.path.dirname(os.path.abspath(saggar.__file__)))
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(delay), how],
        env=os.environ | {"PYTHONPATH": src},
        stdout=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0
    first, second = done.stdout.split()[:2], done.stdout.split()[2:]
    # one that was killed before anybody looked is replaced, and nobody is the wiser
    assert first in ([b"launcher_died", b"None"], [b"exit", b"5"])
    assert first[0] == b"launcher_died" or delay < 1
    assert second == [b"exit", b"5"]


#: a process with an /etc of its own, that changes while its launcher lives
CHANGING = """
import os, shutil, sys
from saggar.isolation import syscalls_host as sys_
sys_.unshare(0x20000)
sys_.mount("", "/", "", 1 << 18 | 1 << 14)
made = sys.argv[1]
shutil.copytree("/etc", made, symlinks=True, ignore_dangling_symlinks=True)
os.makedirs(made + "/fonts", exist_ok=True)
open(made + "/shells", "w").write("old")
sys_.mount(made, "/etc", "", 1 << 12)
import saggar
say = lambda: saggar.run_sync("cat /etc/shells; test -e /etc/fonts && echo fonts")
first = say()
os.rename(made + "/fonts", made + "/gone")
open(made + "/new", "w").write("new")
os.rename(made + "/new", made + "/shells")
second = say()
third = say()
print([(r.cause, r.stdout) for r in (first, second, third)])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace of its own needs root")
def test_a_host_that_changes_is_seen_by_the_next_run(tmp_path):
    src = os.path.dirname(os.path.dirname(os.path.abspath(saggar.__file__)))
    done = subprocess.run(
        [sys.executable, "-c", CHANGING, str(tmp_path / "etc")],
        env=os.environ | {"PYTHONPATH": src},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == str([("exit", b"oldfonts\n"), ("exit", b"new"), ("exit", b"new")]), done.stderr


def test_a_forked_child_has_an_engine_of_its_own():
    assert saggar.run_sync(["true"]).ok
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = saggar.run_sync("exit 9").exit_code
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert saggar.run_sync(["true"]).ok


BAD = [
    ([], "no command was given"),
    ([""], "no command was given"),
    (["a\0b"], "NUL"),
]


@pytest.mark.parametrize(("command", "text"), BAD)
def test_bad_input_raises_and_leaves_no_run(command, text, tmp_path):
    with pytest.raises(UsageError, match=text):
        saggar.run_sync(command)
    runs = tmp_path / "state" / "runs"
    assert not runs.exists() or not list(runs.iterdir())


def _cmdline(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _children(pid):
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found += map(int, file.read().split())
    return found


def _running(number):
    mark = f"{number}.{OWN}".encode()
    return any(mark in _cmdline(pid) for pid in filter(str.isdigit, os.listdir("/proc")))
