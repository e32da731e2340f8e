"""A repository of git's with one commit, made with the host's git and nobody's settings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

#: who commits
IDENTITY = {f"GIT_{who}_{what}": "a@a.test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(*words: str, cwd: str) -> str:
    """What `git WORDS` prints. Raises subprocess.CalledProcessError."""
    env = os.environ | IDENTITY | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    argv = ["git", "-c", "protocol.file.allow=always", *words]
    return subprocess.run(argv, cwd=cwd, env=env, check=True, capture_output=True, text=True).stdout


def make_repository(path: str) -> str:
    """Make a repository at `path`, with the file `kept` on `main`; gives the path back."""
    os.mkdir(path)
    git("init", "-q", "-b", "main", cwd=path)
    Path(path, "kept").write_text("one\n")
    git("add", "kept", cwd=path)
    git("commit", "-q", "-m", "one", cwd=path)
    return path
