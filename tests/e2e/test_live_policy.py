"""`saggar allow`, `revoke`, `egress` and `policy tighten`, on a task that runs."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from saggar.testing.upstream import Upstream

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture
def saggar(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "SAGGAR_STATE_DIR": str(tmp_path / "state"),
        "PYTHONPATH": os.path.join(ROOT, "src"),
    }

    def argv(*words):
        return [sys.executable, "-m", "saggar", *words]

    def run(*words, **options):
        return subprocess.run(
            argv(*words), capture_output=True, text=True, env=environ, cwd=work, timeout=60, check=False, **options
        )

    @contextlib.contextmanager
    def start(*words):
        process = subprocess.Popen(
            argv(*words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd=work
        )
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(timeout=30)
            process.stdout.close()

    run.start = start
    run.work = work
    return run


#: asks for a name each time it gets a line, and says how that went
ASK = """
import sys, urllib.request, urllib.error
for line in sys.stdin:
    try:
        urllib.request.urlopen(line.strip(), timeout=20).read()
        print("ok", flush=True)
    except urllib.error.HTTPError as e:
        print(e.code, e.headers.get("X-Saggar-Reason"), flush=True)
    except OSError as e:
        print("refused", flush=True)
"""


def ask(process, url):
    process.stdin.write(url + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.parametrize("broker_first", [True, False])
def test_allow_and_revoke_take_effect_at_the_next_connection(saggar, broker_first):
    with saggar.start("run", "-q", "--", "python3", "-c", ASK) as task:
        if broker_first:
            assert ask(task, "http://evil.test/") == "refused"
        else:
            ask(task, "file:///etc/passwd")  # it runs, and nothing has gone out yet
        # nobody serves that name: what changes is who refuses
        done = saggar("allow", "new.test:80")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("allowed new.test:80 in r2")
        assert ask(task, "http://new.test/") == "502 resolve_failed"
        done = saggar("revoke", "new.test")
        assert done.stdout.startswith("revoked new.test:80 in r2")
        assert ask(task, "http://new.test/") == "refused"
    log = [json.loads(line) for line in saggar("log", "--json").stdout.splitlines()]
    changes = [(r["kind"], r["effect"], r["detail"]["host"]) for r in log if r["layer"] == "policy"]
    assert changes == [("policy.allow", "allow", "new.test"), ("policy.revoke", "deny", "new.test")]
    order = [(r["kind"], r["effect"]) for r in log if r["detail"].get("host") == "new.test"]
    assert order[0] == ("policy.allow", "allow")
    assert saggar("log", "verify").returncode == 0


def test_revocation_cuts_what_is_open(saggar):
    with Upstream() as upstream:
        policy = saggar.work / "p.toml"
        policy.write_text(
            f'[[egress.allow]]\nhost = "raw.test"\nports = [5555]\nconnect_to = "127.0.0.1:{upstream.port}"\n'
        )
        code = (
            "import socket\ns=socket.create_connection(('raw.test',5555)); s.sendall(b'GET / HTTP/1.1\\r\\nHost: raw.test:5555\\r\\n\\r\\n')\n"
            "print(len(s.recv(99)) > 0, flush=True)\n"
            "try:\n    while s.recv(999): pass\nexcept OSError: pass\nprint('cut', flush=True)\ninput()"
        )
        with saggar.start(
            "run", "-q", "--policy", str(policy), "--workspace", ":none", "--", "python3", "-c", code
        ) as task:
            assert task.stdout.readline().strip() == "True"
            assert saggar("revoke", "raw.test").returncode == 0
            assert task.stdout.readline().strip() == "cut"
            task.stdin.write("\n")


def test_who_is_meant_must_be_clear(saggar):
    assert "no task is running" in saggar("allow", "a.test").stderr
    with saggar.start("run", "-q", "--", "cat") as one, saggar.start("run", "-q", "--", "cat") as two:
        for task in (one, two):
            task.stdin.write("x\n")
            task.stdin.flush()
            task.stdout.readline()
        done = saggar("allow", "a.test")
        assert done.returncode == 2
        assert "2 tasks are running" in done.stderr
        ids = done.stderr.rpartition(": ")[2].strip(" )\n").split(", ")
        assert saggar("allow", "a.test", "--run", ids[0]).returncode == 0
        bad = saggar("allow", "*.com", "--run", ids[0])
        assert bad.returncode == 2
        assert "*.com" in bad.stderr
    assert "has ended" in saggar("allow", "a.test", "--run", ids[0]).stderr


def test_the_egress_record_and_what_it_proposes(saggar):
    with Upstream() as upstream:
        policy = saggar.work.parent / "p.toml"
        policy.write_text(
            f'[[egress.allow]]\nhost = "used.test"\nports = [80, 443]\nconnect_to = "127.0.0.1:{upstream.port}"\n\n'
            '[[egress.allow]]\nhost = "idle.test"\n'
        )
        script = "curl -sS http://used.test/ >/dev/null; curl -sS http://evil.test/; true"
        saggar("run", "-q", "--policy", str(policy), "--", "sh", "-c", script)
    shown = json.loads(saggar("egress", "show", "--json").stdout)
    assert [(d["host"], d["unused"]) for d in shown["declared"]] == [("used.test", [443]), ("idle.test", [443])]
    assert [(u["host"], u["port"], u["count"], u["bytes_up"] > 0) for u in shown["used"]] == [
        ("used.test", 80, 1, True)
    ]
    assert [(r["host"], r["reason"]) for r in shown["refused"]] == [("evil.test", "host_not_listed")]
    assert "host_not_listed" in saggar("egress", "log").stdout
    assert "(unused: 443)" in saggar("egress", "show").stdout
    done = saggar("policy", "tighten", "--policy", str(policy))
    assert done.returncode == 0
    removed = [line for line in done.stdout.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert removed == ["-ports = [80, 443]", "-[[egress.allow]]", '-host = "idle.test"']
    assert "+ports = [80]" in done.stdout
    assert "idle.test:443" in done.stderr


def test_the_log_and_the_proposal_say_what_to_do_next(saggar):
    saggar("run", "-q", "--allow", "idle.test", "--", "true")
    done = saggar("egress", "log", "--effect", "maybe")
    assert (done.returncode, done.stderr.startswith("usage: saggar egress log ")) == (2, True)
    assert {line.split()[1] for line in saggar("egress", "log").stdout.splitlines()} <= {"L2"}
    done = saggar("policy", "tighten")
    assert done.stdout == ""
    shown = saggar("egress", "show").stdout
    if "idle.test" in shown:
        assert "`--policy FILE` proposes" in done.stderr
    policy = saggar.work.parent / "p.toml"
    policy.write_text("")
    with saggar.start("run", "-q", "--allow", "idle.test", "--", "python3", "-c", ASK) as task:
        assert ask(task, "http://evil.test/") == "refused"
    done = saggar("policy", "tighten", "--policy", str(policy))
    assert (done.returncode, done.stdout) == (0, "")
    assert "no change to" in done.stderr
    assert "`--policy FILE` proposes" in saggar("policy", "tighten").stderr


def test_following_ends_with_an_interrupt_and_with_the_run(saggar):
    import signal

    with saggar.start("run", "-q", "--", "python3", "-c", ASK) as task:
        # answered, so the run is there to be followed
        assert ask(task, "http://evil.test/") == "refused"
        with saggar.start("egress", "log", "--follow") as follow:
            assert "host_not_listed" in follow.stdout.readline()
            follow.send_signal(signal.SIGINT)
            assert follow.wait(20) == 130
        with saggar.start("egress", "log", "--follow") as follow:
            assert "host_not_listed" in follow.stdout.readline()
            task.stdin.close()
            assert follow.wait(20) == 0
