"""Many mixed exchanges with upstreams that stall, reset and lie, and clients that leave: nothing is lost, nothing is left."""

import os
import random
import socket
import ssl
import struct
import sys
import threading
import time

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "unit", "egress"))
from terminated_rig import SECRET, Rig, get, read_message

BEARER = {"credential": {"source": "env:REAL_KEY", "env": "K"}}


def moody(request, conn):
    """The path says what the upstream does."""
    mood = request.split(b" ")[1].strip(b"/").split(b"?")[0]
    body = b"echo " + SECRET.encode() + b" end"
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    if mood == b"ok":
        conn.sendall(plain)
    elif mood == b"chunked":
        conn.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(0, len(body), 5):
            conn.sendall(b"%x\r\n%s\r\n" % (len(body[i : i + 5]), body[i : i + 5]))
        conn.sendall(b"0\r\n\r\n")
    elif mood == b"cut":
        conn.sendall(plain[:-4])
        return None
    elif mood == b"reset":
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        conn.close()
        raise OSError
    elif mood == b"lie":
        conn.sendall(plain + plain)
    elif mood == b"junk":
        conn.sendall(os.urandom(300) + b"\r\n\r\n")
    elif mood == b"close":
        conn.sendall(plain)
        return None
    elif mood == b"stall":
        time.sleep(0.3)
        conn.sendall(plain)
    elif mood == b"large":
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + b"z" * 2000000)
    return True


MOODS = ["ok", "chunked", "cut", "reset", "lie", "junk", "close", "stall", "large"]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def rss_kib():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def drive(rig, seconds, seed, wrong, counts):
    chance = random.Random(seed)
    stop = time.monotonic() + seconds
    conn = None
    while time.monotonic() < stop:
        mood = chance.choice(MOODS)
        field = b"Authorization: Bearer " + rig.placeholder.encode()
        try:
            conn = conn or rig.connect()
            method, body = (
                (b"POST", b"x" * chance.choice([1, 1000, 300000])) if chance.random() < 0.3 else (b"GET", b"")
            )
            data = get(b"/" + mood.encode(), field, method=method, body=body)
            leave = chance.random()
            if leave < 0.1:
                conn.sendall(data[: chance.randrange(len(data))])
                conn.close()
                conn = None
                continue
            conn.sendall(data)
            if leave < 0.2:
                conn.close()
                conn = None
                continue
            answer = read_message(conn)
            if SECRET.encode() in answer:
                wrong.append((mood, "the secret came through"))
            status = answer[9:12]
            counts[mood, status] = counts.get((mood, status), 0) + 1
            if mood in ("ok", "chunked", "stall", "large", "close") and status != b"200" and method == b"GET":
                wrong.append((mood, answer[:200]))
            if mood == "junk" and status != b"502":
                wrong.append((mood, answer[:200]))
            if b"Connection: close" in answer or mood in ("cut", "reset", "junk") or status != b"200":
                conn.close()
                conn = None
        except (OSError, ssl.SSLError, ValueError) as e:
            if mood in ("ok", "chunked", "stall", "large"):
                counts["error", mood, type(e).__name__] = counts.get(("error", mood, type(e).__name__), 0) + 1
            conn = None


def soak(seconds, threads):
    wrong, counts = [], {}

    def run(rig, seconds_):
        workers = [threading.Thread(target=drive, args=(rig, seconds_, i, wrong, counts)) for i in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def left(rig):
        return rig.call(lambda: [(c.state, c.responding, len(c.pending), c.eof) for c in rig.termination.clients])

    with Rig(moody, BEARER) as rig:
        # clients and upstreams live in this process too: memory counts from where all have been at work
        run(rig, seconds / 3)
        memory = rss_kib()
        before = descriptors()
        run(rig, seconds)
        deadline = time.monotonic() + 10
        while left(rig) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left(rig) == []
        assert rig.call(lambda: rig.termination.budget.task.connections) == 0
        deadline = time.monotonic() + 25
        while descriptors() > before + 20 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert descriptors() <= before + 20
        assert rss_kib() - memory < 60 * 1024, (rss_kib(), memory)
    assert wrong == []
    assert sum(n for k, n in counts.items() if k[0] == "ok") > 10
    return counts


def test_a_short_soak():
    soak(4, 6)


@pytest.mark.slow
def test_ten_minutes():
    soak(600, 8)
