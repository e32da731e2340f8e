"""The filter in the kernel: each row of the table is really tried under bubblewrap, and real programs still work.

EPERM alone proves nothing (a cell has no capabilities anyway), so each row is also tried with a marked errno that no
kernel returns by itself.
"""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

from saggar.isolation import seccomp

ARCH = os.uname().machine
MARK = 1234  # below MAX_ERRNO (4095), used by no kernel code
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
ROWS = [r for r in seccomp.REFUSALS if ARCH in seccomp._NUMBERS and seccomp.number(r.call, ARCH) is not None]

PROBE = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.syscall.argtypes = [ctypes.c_long] * 7
out = []
for call in json.loads(sys.argv[1]):
    ctypes.set_errno(0)
    result = libc.syscall(*call)
    out.append(ctypes.get_errno() if result == -1 else 0)
print(json.dumps(out))
"""


def bad_arguments(row: seccomp.Refusal) -> list[int]:
    args = [0] * 6
    for kind, index, values in row.tests:
        args[index] = {"bits": values[0], "among": values[0], "above": values[0] + 1}.get(kind, 89)
    return args


def test_every_row_is_matched_by_the_kernel(under_filter) -> None:
    marked = [seccomp.Refusal(r.call, MARK, r.reason, r.tests) for r in ROWS]
    calls = [[seccomp.number(r.call, ARCH), *bad_arguments(r)] for r in ROWS]
    done = under_filter(seccomp._build(ARCH, marked), [PYTHON, "-I", "-c", PROBE, json.dumps(calls)])
    assert done.returncode == 0, done.stderr
    got = dict(zip([f"{r.call}:{r.reason}" for r in ROWS], json.loads(done.stdout), strict=True))
    assert got == dict.fromkeys(got, MARK)


def test_every_row_answers_with_its_own_errno(under_filter) -> None:
    calls = [[seccomp.number(r.call, ARCH), *bad_arguments(r)] for r in ROWS]
    # every row, also those for some cells only
    done = under_filter(seccomp._build(ARCH, ROWS), [PYTHON, "-I", "-c", PROBE, json.dumps(calls)])
    assert json.loads(done.stdout) == [r.errno for r in ROWS], done.stderr


def test_controls_without_the_filter_the_same_calls_do_something(bwrap: str) -> None:
    """Positive control: without a filter, another netlink family and a nested user namespace are reachable."""
    import subprocess

    code = (
        "import socket, ctypes; libc = ctypes.CDLL(None, use_errno=True);"
        "s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4); print('netlink', s.fileno() > 0);"
        "print('userns', libc.unshare(0x10000000))"
    )
    done = subprocess.run(
        [bwrap, "--unshare-user", "--ro-bind", "/", "/", "--", PYTHON, "-I", "-c", code],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "netlink True\nuserns 0\n", done.stderr


def test_unknown_and_x32_calls_do_not_exist(under_filter) -> None:
    calls = [[seccomp.NEWEST + 1, 0, 0, 0, 0, 0, 0], [4000, 0, 0, 0, 0, 0, 0]]
    if ARCH == "x86_64":
        calls.append([0x4000_0000 | 39, 0, 0, 0, 0, 0, 0])  # x32 getpid
    done = under_filter(seccomp.build_filter(ARCH), [PYTHON, "-I", "-c", PROBE, json.dumps(calls)])
    assert json.loads(done.stdout) == [38] * len(calls)


@pytest.mark.skipif(ARCH != "x86_64", reason="int 0x80 is an x86 gate")
def test_a_32_bit_call_kills(under_filter) -> None:
    # mov eax, 20 (i386 getpid); int 0x80; ret
    code = (
        "import ctypes, mmap; m = mmap.mmap(-1, 4096, prot=7);"
        "m.write(bytes.fromhex('b814000000cd80c3'));"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)));"
        "print('alive', f())"
    )
    plain = under_filter(
        seccomp._build("x86_64", []).replace(b"\x00\x00\x00\x80", b"\x00\x00\xff\x7f"), [PYTHON, "-I", "-c", code]
    )
    if "alive" not in plain.stdout:
        pytest.skip("this kernel has no 32-bit gate")
    done = under_filter(seccomp.build_filter("x86_64"), [PYTHON, "-I", "-c", code])
    assert "alive" not in done.stdout
    assert done.returncode == 128 + 31  # SIGSYS


PROGRAMS = {
    "bash-job-control": ["bash", "-c", "set -m; sleep 30 & kill -STOP %1; wait -n 2>/dev/null; jobs; kill -9 %1; echo done"],
    "bash-pipes": ["bash", "-c", "seq 1000 | sort -R | sort -n | tail -1"],
    "git": ["bash", "-c", "cd /tmp && git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline | wc -l"],
    "python-multiprocessing": ["python3", "-c", "import multiprocessing as m\nwith m.Pool(3) as p: print(sum(p.map(abs, range(100))))"],
    "python-threads": ["python3", "-c", "import concurrent.futures as c\nwith c.ThreadPoolExecutor(8) as p: print(sum(p.map(abs, range(100))))"],
    "python-subprocess": ["python3", "-c", "import subprocess as s; print(s.run(['true']).returncode, s.check_output(['id', '-u']))"],
    "pip": ["python3", "-m", "pip", "--no-input", "list"],
    "gcc": ["bash", "-c", "cd /tmp && echo 'int main(){return 7;}' > a.c && gcc a.c -o a && ./a; test $? = 7 && echo 7"],
    "node": ["node", "-e", "const w=new (require('worker_threads').Worker)('process.exit(0)',{eval:true});w.on('exit',()=>require('fs').readFile('/etc/hostname',()=>console.log('ok')))"],
    "node-http": ["node", "-e", "require('http').createServer((q,r)=>r.end('x')).listen(8099,'127.0.0.1',()=>require('http').get('http://127.0.0.1:8099',r=>{console.log(r.statusCode);process.exit()}))"],
    "npm": ["npm", "--version"],
    "java": ["java", "-version"],
    "go": ["bash", "-c", "cd /tmp && export HOME=/tmp GOCACHE=/tmp/gc GOFLAGS=-mod=mod && printf 'package main\\nimport \"net\"\\nfunc main(){l,e:=net.Listen(\"tcp\",\"127.0.0.1:0\");if e!=nil{panic(e)};println(l!=nil)}' > m.go && PATH=$PATH:/usr/local/go/bin go run m.go"],
    "postgres": ["bash", "-c", "p=$(ls -d /usr/lib/postgresql/*/bin | tail -1); test $(id -u) != 0 || exit 0; $p/initdb -D /tmp/db >/dev/null && $p/pg_ctl -D /tmp/db -o '-k /tmp' -w start >/tmp/log && $p/psql -h /tmp -tc 'select 7' postgres; $p/pg_ctl -D /tmp/db -m fast stop"],
    "gdb-says-why": ["bash", "-c", "gdb -batch -ex run /bin/true 2>&1 | grep -i 'not permitted'"],
    "script": ["script", "-qec", "echo pty", "/dev/null"],
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_real_programs_work(under_filter, name: str) -> None:
    argv = PROGRAMS[name]
    needed = {
        "git": "git",
        "gcc": "gcc",
        "go": "/usr/local/go/bin/go",
        "gdb-says-why": "gdb",
        "postgres": "/usr/lib/postgresql/15/bin/initdb",
    }.get(name, argv[0])
    search = os.pathsep.join(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    if shutil.which(needed, path=search) is None:
        pytest.skip(f"{needed} is not installed on this host")
    done = under_filter(
        seccomp.build_filter(ARCH), argv, env={"PATH": search, "HOME": "/tmp", "LANG": "C.UTF-8"}, cwd="/"
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-500:]
