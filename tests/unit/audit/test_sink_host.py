"""The log on a real file system: many writers, killed writers, full disks."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading

import pytest

from saggar.audit.record import GENESIS
from saggar.audit.sink_host import AuditLog
from saggar.audit.verify import verify

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(sys.modules["saggar.audit"].__file__)))


def check(path, **options):
    with open(path, "rb") as f:
        return verify(f, **options)


def put(log, n=0):
    return log.append("egress.decision", layer="L2", effect="deny", reason="host_not_listed", detail={"n": n})


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "audit.jsonl")


def test_chain_from_the_first_record(path):
    log = AuditLog(path, "t", wall=lambda: 1_800_000_000.25)
    assert log.head() == (-1, GENESIS)
    assert put(log)[0] == 0
    seq, head = put(log)
    assert (seq, head) == log.head()
    records = [json.loads(line) for line in open(path)]
    assert records[0]["time"] == "2027-01-15T08:00:00.250000Z"
    assert records[0]["prev"] == GENESIS
    assert check(path, head=head).ok
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_two_logs_on_one_file_take_turns(path):
    a, b = AuditLog(path, "t"), AuditLog(path, "t")
    for i in range(20):
        assert put(random.choice([a, b]))[0] == i
    assert check(path).records == 20


def test_threads_and_fork(path):
    log = AuditLog(path, "t")
    pids = []
    for _ in range(3):
        pid = os.fork()
        if not pid:
            try:
                for i in range(100):
                    put(log, i)
            finally:
                os._exit(0)
        pids.append(pid)
    threads = [threading.Thread(target=lambda: [put(log, i) for i in range(100)]) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for pid in pids:
        os.waitpid(pid, 0)
    report = check(path)
    assert report.ok, report.faults[:3]
    assert report.records == 600


WRITER = """
import sys; sys.path.insert(0, sys.argv[1])
from saggar.audit.sink_host import AuditLog
log = AuditLog(sys.argv[2], "t")
n = int(sys.argv[3])
print("go", flush=True)
while n:
    log.append("limit.sample", layer="L1", detail={"text": "x" * (n * 7919 % 9000)})
    n -= 1
"""


def writer(path, count):
    p = subprocess.Popen([sys.executable, "-I", "-c", WRITER, SOURCE, path, str(count)], stdout=subprocess.PIPE)
    p.stdout.readline()
    return p


def test_processes_share_one_chain(path):
    writers = [writer(path, 300) for _ in range(4)]
    for p in writers:
        assert p.wait(60) == 0
        p.stdout.close()
    report = check(path)
    assert report.ok, report.faults[:3]
    assert report.records == 1200


def test_i3_killed_writers_leave_a_verifiable_log(path):
    dice = random.Random(7)
    for _ in range(12):
        writers = [writer(path, -1) for _ in range(2)]
        size = os.stat(path).st_size
        goal = size + dice.randrange(1, 300_000)
        while os.stat(path).st_size < goal:
            pass
        for p in writers:
            p.send_signal(signal.SIGKILL)
            p.wait(10)
            p.stdout.close()
    _, head = put(AuditLog(path, "t"))
    report = check(path, head=head)
    assert report.ok, report.faults[:3]


TORN = [
    ("start of a record", b'{"detail":{"host":"a'),
    ("within a character", '{"detail":{"host":"é'.encode()[:-1]),
    ("one byte", b"{"),
    ("two regions", b'{"detail":{"host":"a\n{"detail":{"bytes":2'),
    ("named by nobody yet", b'{"detail":{"host":"a\n'),
]


@pytest.mark.parametrize("torn", [t[1] for t in TORN], ids=[t[0] for t in TORN])
@pytest.mark.parametrize("before", [0, 3])
def test_i3_torn_line_is_kept_and_chained_over(path, torn, before):
    log = AuditLog(path, "t")
    for _ in range(before):
        put(log)
    with open(path, "ab") as f:
        f.write(torn)
    assert not check(path).ok
    other = AuditLog(path, "t")
    assert put(other)[0] == before + 1
    put(log)
    with open(path, "rb") as f:
        data = f.read()
    assert torn in data
    report = check(path)
    assert report.ok, report.faults
    assert [n.kind for n in report.notes] == ["torn"]
    # the evidence is under the chain as well
    at = data.index(torn)
    for i in range(at, at + len(torn)):
        changed = bytearray(data)
        changed[i] ^= 1
        assert not verify(bytes(changed).splitlines(keepends=True)).ok, i


def test_record_without_its_newline_counts(path):
    log = AuditLog(path, "t")
    put(log)
    put(log)
    with open(path, "r+b") as f:
        f.truncate(os.stat(path).st_size - 1)
    assert put(log)[0] == 2
    assert check(path).ok


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.replace(b"host_not_listed", b"host_not_LISTED"),
        lambda d: d[:-2] + b" }\n",
        lambda d: d + b"[]\n",
        lambda d: d + b"{}\n",
    ],
)
def test_i4_no_record_after_tampering(path, spoil):
    log = AuditLog(path, "t")
    put(log)
    data = open(path, "rb").read()
    with open(path, "wb") as f:
        f.write(spoil(data))
    with pytest.raises(OSError, match="damaged") as e:
        put(AuditLog(path, "t"))
    assert e.value.errno == errno.EBADMSG
    assert open(path, "rb").read() == spoil(data)


def test_i4_no_record_into_a_removed_log(path):
    log = AuditLog(path, "t")
    put(log)
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        put(log)


def test_symlink_is_not_followed(path, tmp_path):
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(OSError):
        AuditLog(path, "t")


def test_i1_full_disk_raises_and_leaves_the_chain(path):
    """RLIMIT_FSIZE in a child: write(2) is cut short, then refused, as on a full disk."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
            log = AuditLog(path, "t")
            refused = 0
            for n in range(40):
                try:
                    put(log, n)
                except OSError:
                    refused += 1
            status = 0 if refused > 5 else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    report = check(path)
    assert report.ok, report.faults
    put(AuditLog(path, "t"))
    assert check(path).records == report.records + 1


def test_i5_the_file_system_is_never_filled(path, monkeypatch):
    from saggar.audit import sink_host

    log = AuditLog(path, "t")
    monkeypatch.setattr(sink_host, "STEP", 4096)
    while os.stat(path).st_size < 3 * 4096:
        put(log)
    monkeypatch.setattr(sink_host, "ROOM", 2**62)
    with pytest.raises(OSError, match="too little room"):
        for _ in range(20):
            put(log)
    with pytest.raises(OSError, match="too little room"):
        put(log)
    log.append("run.end", layer="L1")
    assert check(path).ok


def test_interrupted_append_looks_again(path, monkeypatch):
    log = AuditLog(path, "t")
    put(log)
    real = os.write

    def write_then_interrupt(fd, data):
        real(fd, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", write_then_interrupt)
    with pytest.raises(KeyboardInterrupt):
        put(log)
    monkeypatch.undo()
    put(log)
    report = check(path)
    assert report.ok
    assert report.records == 3


def defer(log, n=0):
    log.defer(log.form("egress.decision", layer="L2", effect="allow", reason="rule", detail={"n": n}))


def numbers(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line)["detail"].get("n") for line in f]


def test_i6_deferred_records_stand_first_and_are_written_together(path, monkeypatch):
    log, other = AuditLog(path, "t"), AuditLog(path, "t")
    writes = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or real(fd, data))
    for n in range(3):
        defer(log, n)
    assert not os.path.getsize(path)
    log.commit()
    log.commit()
    assert len(writes) == 1
    defer(log, 3)
    put(other, 4)  # another process' record may come in between
    assert put(log, 5)[0] == 5
    assert numbers(path) == [0, 1, 2, 4, 3, 5]
    assert check(path, head=log.head()[1]).ok


def test_i6_deferred_record_that_cannot_be_written_is_not_forgotten(path, monkeypatch):
    log = AuditLog(path, "t")
    put(log)

    def full(fd, data):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    defer(log, 1)
    for attempt in (log.commit, lambda: put(log, 2), log.commit):
        with pytest.raises(OSError, match="full"):
            attempt()
    monkeypatch.undo()
    log.commit()
    assert numbers(path) == [0, 1]
    assert check(path).ok


def test_i6_a_child_does_not_write_its_parents_records(path):
    log = AuditLog(path, "t")
    defer(log, 1)
    pid = os.fork()
    if not pid:
        log.commit()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    log.commit()
    assert numbers(path) == [1]


def test_i5_deferred_records_leave_room_too(path, monkeypatch):
    from saggar.audit import sink_host

    log = AuditLog(path, "t")
    put(log)
    monkeypatch.setattr(sink_host, "STEP", -1)
    monkeypatch.setattr(sink_host, "ROOM", 2**62)
    defer(log, 1)
    with pytest.raises(OSError, match="too little room"):
        log.commit()
    assert numbers(path) == [0]


def test_import_stays_light():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import saggar.audit.sink_host; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-I", "-c", code, SOURCE], capture_output=True, text=True, check=True).stdout
    heavy = {"json", "re", "enum", "dataclasses", "typing", "hashlib", "datetime", "threading", "pathlib", "subprocess"}
    assert not heavy & set(out.split())
