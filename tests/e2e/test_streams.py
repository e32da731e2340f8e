"""Standard streams of every kind through `saggar run`, driven by a shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = str(Path(__file__).resolve().parents[2] / "src")


@pytest.fixture
def shell(tmp_path):
    """Runs a script with a `saggar` command, in a directory beside the workspace."""
    work = tmp_path / "work"
    work.mkdir()

    def run(script, timeout=60):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "PYTHONPATH": SRC,
            "SAGGAR_STATE_DIR": str(tmp_path / "state"),
        }
        head = f'saggar() {{ {sys.executable} -m saggar run --workspace {work} -- "$@"; }}\n'
        return subprocess.run(
            ["bash", "-c", head + script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    run.path = tmp_path
    return run


SCRIPTS = [
    # name, script, exit code, stdout
    ("a file as stdin", "printf 'a\\nb\\n' > in; saggar cat < in", 0, b"a\nb\n"),
    (
        "what was not taken of a file is left to the next reader",
        "printf '1\\n2\\n3\\n' > in; { saggar sh -c 'read a; echo got $a'; cat; } < in",
        0,
        b"got 1\n2\n3\n",
    ),
    (
        "a loop over a file sees every line",
        "printf '1\\n2\\n3\\n' > in; while read l; do saggar true; echo $l; done < in",
        0,
        b"1\n2\n3\n",
    ),
    ("a here-document", "saggar cat <<EOF\nx\nEOF", 0, b"x\n"),
    ("a pipe", "echo x | saggar cat | cat", 0, b"x\n"),
    ("a closed stdin", "saggar sh -c 'cat; echo end' <&-", 0, b"end\n"),
    ("a closed stdout", "saggar sh -c 'echo x; echo y >&2' >&-", 0, b""),
    ("stdout and stderr in one file, in order", "saggar sh -c 'echo a; echo b' > out 2>&1; cat out", 0, b"a\nb\n"),
    ("a reader that leaves", "set -o pipefail; saggar yes | head -n 1", 141, b"y\n"),
    ("a lot of data", "head -c 30000000 /dev/zero | saggar cat | wc -c", 0, b"30000000\n"),
    (
        "a lot of data from and into files",
        "head -c 9000000 /dev/zero > in; saggar cat < in > out; cmp in out && echo same",
        0,
        b"same\n",
    ),
    ("appending", "echo old > out; saggar echo new >> out; cat out", 0, b"old\nnew\n"),
    ("a socket pair", "saggar python3 -c 'import sys; print(sys.stdin.read())' < <(echo x)", 0, b"x\n\n"),
]


@pytest.mark.parametrize(("script", "code", "out"), [c[1:] for c in SCRIPTS], ids=[c[0] for c in SCRIPTS])
def test_streams(shell, script, code, out):
    done = shell(script)
    assert (done.returncode, done.stdout) == (code, out), done.stderr


def test_what_was_in_a_file_before_can_be_neither_read_nor_cut(shell):
    (shell.path / "log").write_text("secret\n")
    attack = (
        "import os\n"
        "for act in (lambda: os.ftruncate(1, 0), lambda: os.lseek(1, 0, 0), lambda: os.pread(1, 9, 0), "
        "lambda: os.write(2, open('/proc/self/fd/1', 'rb', 0).read(1) or b'')):\n"
        "    try: act(); os.write(2, b'done\\n')\n"
        "    except OSError as e: os.write(2, b'no\\n')\n"
        "os.write(1, b'said\\n')\n"
    )
    (shell.path / "work" / "attack.py").write_text(attack)
    # the last act would wait for its own pipe: a deadline for the whole
    done = shell("saggar timeout 2 python3 attack.py >> log 2> err; cat log err", timeout=30)
    assert b"secret\n" in done.stdout
    assert done.stdout.count(b"no\n") >= 3
    assert b"done" not in done.stdout


def test_a_full_disk_behind_stdout_is_no_success(shell):
    done = shell("saggar sh -c 'yes | head -c 1000000' > /dev/full")
    assert done.returncode != 0 or done.stderr
