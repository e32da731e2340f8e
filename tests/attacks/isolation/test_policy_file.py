"""A policy that lies in its workspace cannot be changed from inside, in any mode."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
POLICY = "[limits]\ntasks = 60\n"

WAYS = {
    "write": "echo evil > conf/p.toml",
    "append": "echo evil >> conf/p.toml",
    "truncate": ": > conf/p.toml",
    "remove": "rm -f conf/p.toml; echo evil > conf/p.toml",
    "rename over": "echo evil > new; mv -f new conf/p.toml",
    "rename away": "mv conf/p.toml old; echo evil > conf/p.toml",
    "rename the directory": "mv conf other; mkdir conf; echo evil > conf/p.toml",
    "hard link": "ln conf/p.toml hard && echo evil > hard",
    "symlink": "ln -sfn /dev/null conf/p.toml",
    "swap directories": "mkdir evil; echo evil > evil/p.toml; mv -T --exchange evil conf || mv -T evil conf",
    "mode": "chmod 666 conf/p.toml; echo evil > conf/p.toml",
    "through /proc": "echo evil > /proc/self/cwd/conf/p.toml; echo evil > /proc/self/root$PWD/conf/p.toml",
    "unmount": "umount conf/p.toml; umount -l conf/p.toml; echo evil > conf/p.toml",
}


@pytest.mark.requires_userns
@pytest.mark.parametrize("mode", ["copy-on-write", "read-only", "read-write"])
def test_policy_stays_as_it_is(place, workspace, mode):
    os.mkdir(f"{workspace}/conf")
    path = f"{workspace}/conf/p.toml"
    with open(path, "w") as f:
        f.write(POLICY)
    before = os.stat(path)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": place,
        "PYTHONPATH": f"{ROOT}/src",
        "SAGGAR_STATE_DIR": f"{place}/state",
    }
    for way, script in WAYS.items():
        result = f"{place}/result.json"
        command = [
            sys.executable,
            "-m",
            "saggar",
            "run",
            "--policy",
            "conf/p.toml",
            "--workspace",
            f".:{mode}",
            "--json",
            result,
        ]
        done = subprocess.run([*command, "--", "sh", "-c", f"({script}); cat conf/p.toml"], cwd=workspace, env=environment,
                              capture_output=True, text=True, check=False, timeout=60)  # fmt: skip
        assert done.stdout.endswith(POLICY), (way, done.stdout, done.stderr)
        with open(path) as f:
            assert f.read() == POLICY, way
        after = os.stat(path)
        assert (after.st_ino, after.st_mode, after.st_uid) == (before.st_ino, before.st_mode, before.st_uid), way
        with open(result) as f:
            log = json.load(f)["audit_path"]
        with open(log) as f:
            start = json.loads(f.readline())
        assert start["detail"]["policy"] == path, way
