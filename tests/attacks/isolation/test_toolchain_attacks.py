"""A tool chain in a real cell: it runs, and what lies beside it, or behind a link of the workspace, is not there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MARK = "what-no-cell-may-read"


class Host:
    """A caller's home and workspace; `run` gives the command's standard output, and what the audit log says was shown."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.home = f"{base}/home"
        self.workspace = f"{base}/home/work"
        os.makedirs(self.workspace)

    def file(self, path: str, text: str = MARK, mode: int = 0o755) -> str:
        full = f"{self.base}/{path}"
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(full, mode)
        return full

    def program(self, path: str) -> str:
        """A real program, which prints the files that it is given."""
        full = self.file(path)
        shutil.copy("/bin/cat", full)
        return full

    def link(self, path: str, target: str) -> None:
        os.makedirs(os.path.dirname(f"{self.base}/{path}"), exist_ok=True)
        os.symlink(target, f"{self.base}/{path}")

    def run(self, *argv: str, path: str = "") -> tuple[subprocess.CompletedProcess[str], list[str]]:
        result = f"{self.base}/result.json"
        environment = {
            "PATH": f"{path}:/usr/bin:/bin",
            "HOME": self.home,
            "PYTHONPATH": f"{ROOT}/src",
            "SAGGAR_STATE_DIR": f"{self.base}/state",
        }
        command = [sys.executable, "-m", "saggar", "run", "--json", result, "--", *argv]
        done = subprocess.run(command, cwd=self.workspace, env=environment, capture_output=True, text=True,
                              check=False, timeout=60)  # fmt: skip
        with open(result, encoding="utf-8") as file:
            text = file.read()
        if not text:  # refused before a run began
            return done, []
        log = json.loads(text)["audit_path"]
        with open(log, encoding="utf-8") as file:
            start = json.loads(file.readline())
        return done, start.get("detail", {}).get("toolchain", [])


@pytest.fixture
def host():
    base = tempfile.mkdtemp(prefix="saggar-test-", dir="/tmp")  # /var/tmp is the system's state: no tool chain is shown
    os.chmod(base, 0o755)
    yield Host(base)
    from saggar.isolation.discard_host import remove_tree

    fd = os.open("/tmp", os.O_RDONLY)  # overlayfs leaves directories that their owner may not open
    remove_tree(os.path.basename(base), fd)
    os.close(fd)


pytestmark = pytest.mark.requires_userns


@pytest.mark.parametrize("program", ["node", "sh"])
def test_an_installation_in_local_does_not_show_the_data_there(host, program):
    node = host.program("home/.local/bin/node")
    cli = host.file("home/.local/lib/node_modules/npm/cli.js", "the-library")
    secrets = [
        host.file("home/.local/share/keyrings/login.keyring", mode=0o644),
        host.file("home/.local/state/saggar/runs/1/audit.jsonl", mode=0o644),
        host.file("home/.local/bin/deploy"),
    ]
    argv = [program] if program == "node" else ["sh", "-c", 'exec node "$@"', "sh"]
    done, shown = host.run(*argv, cli, *secrets, path=f"{host.home}/.local/bin")
    assert "the-library" in done.stdout, done.stderr
    assert MARK not in done.stdout
    assert done.stderr.count("No such file") == 3, done.stderr
    assert set(shown) == {node, f"{host.home}/.local/lib/node_modules"}


def test_a_program_outside_homes_does_not_show_what_lies_beside_it(host):
    program = host.program("u/bin/prog")
    key = host.file("u/keys/k", mode=0o644)
    done, shown = host.run("prog", key, path=f"{host.base}/u/bin")
    assert "No such file" in done.stderr
    assert MARK not in done.stdout
    assert shown == [program]


def test_a_directory_link_of_the_workspace_shows_nothing(host):
    host.program("private/bin/tool")
    key = host.file("private/k", mode=0o644)
    host.link("home/work/tools", f"{host.base}/private/bin")
    done, shown = host.run("./tools/tool", key)
    assert done.returncode == 2, done
    assert "does not show" in done.stderr
    assert (MARK in done.stdout, shown) == (False, [])


def test_a_first_line_with_env_shows_no_program_of_the_callers(host):
    deploy = host.file("home/bin/deploy", f"#!/bin/sh\necho {MARK}\n")
    host.file("home/work/run", "#!/usr/bin/env deploy\n")
    done, shown = host.run("./run", path=f"{host.home}/bin")
    assert MARK not in done.stdout
    assert done.returncode == 127, done
    assert deploy not in shown


def test_a_version_file_does_not_choose_an_environment(host):
    host.file("home/.pyenv/libexec/pyenv", "")
    host.file("home/.pyenv/shims/python", "#!/bin/sh\nexit 9\n")
    host.file("home/.pyenv/versions/other/pyvenv.cfg", "home = /usr/bin\n")
    host.program("home/.pyenv/versions/other/bin/python")
    key = host.file("home/.pyenv/versions/other/bin/postactivate", mode=0o644)
    host.file("home/work/.python-version", "other\n")
    done, shown = host.run("python", key, path=f"{host.home}/.pyenv/shims")
    assert done.returncode == 2, done
    assert "chooses the environment" in done.stderr
    assert (MARK in done.stdout, shown) == (False, [])
