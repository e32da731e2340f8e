"""The same wall, from inside cells that `saggar.run` makes: what the real launcher, seccomp and the broker hold together."""

import asyncio
import json
import os
import signal

import pytest

import saggar
from saggar.policy.model import EgressPolicy, EgressRule, Policy


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def policy(rules):
    return Policy(egress=EgressPolicy(allow=tuple(rules)))


def records(result):
    with open(result.audit_path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def run(code, policy, **kwargs):
    result = saggar.run_sync(["python3", "-c", code], policy, timeout_s=60, **kwargs)
    assert result.cause == "exit", (result, result.stderr)
    assert result.exit_code == 0, result.stderr
    return result


FETCH = "import ssl,urllib.request as u; print(u.urlopen(%r, context=ssl._create_unverified_context()).read().decode())"


def test_a_listed_host_is_reached_and_recorded(policy, tls_upstream):
    result = run(FETCH % "https://api.allowed.test/a", policy)
    assert result.stdout.strip() == b"hello from upstream: GET /a HTTP/1.1"
    (allowed,) = [r for r in records(result) if r["layer"] == "L2" and r["effect"] == "allow"]
    assert (allowed["rule"], allowed["detail"]["connect_to"]) == ("api", f"127.0.0.1:{tls_upstream.port}")


DENIED = {
    "name": ("socket.create_connection(('evil.test', 443))", "gaierror", "host_not_listed"),
    "address": (
        "ssl.create_default_context().wrap_socket(socket.create_connection(('192.0.2.1', 443)), server_hostname='evil.test')",
        "SSLError",
        "host_not_listed",
    ),
    "no sni": (
        "c=ssl.create_default_context(); c.check_hostname=False; c.wrap_socket(socket.create_connection(('192.0.2.1', 443)))",
        "SSLError",
        "no_name",
    ),
    "port": ("socket.create_connection(('192.0.2.1', 22))", "ConnectionRefusedError", "port_not_listed"),
    "udp": (
        "s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('192.0.2.1', 443)); s.send(b'x'); s.settimeout(5); s.recv(1)",
        "ConnectionRefusedError",
        "protocol_refused",
    ),
    "http": ("import urllib.request as u; u.urlopen('http://192.0.2.1/')", "HTTPError", "ip_literal"),
    "garbage": (
        "s=socket.create_connection(('192.0.2.1', 443)); s.sendall(b'SSH-2.0-x\\r\\n'); s.recv(1)",
        "ConnectionResetError",
        "unknown_protocol",
    ),
}


@pytest.mark.parametrize("case", DENIED)
def test_each_way_out_is_refused_with_its_reason(policy, case, tls_upstream, http_upstream):
    code, error, reason = DENIED[case]
    script = f"import socket, ssl\ntry:\n    {code}\nexcept Exception as e:\n    print(type(e).__name__)"
    result = run(script, policy)
    assert result.stdout.decode().strip() == error
    assert reason in [r["reason"] for r in records(result) if r["layer"] == "L2" and r["effect"] == "deny"]
    assert result.refused == 1
    assert (tls_upstream.accepted, http_upstream.accepted) == (0, 0)


CHANGES = {
    "row 21 flush routes": "ip route flush table local; ip route flush cache; ip link set lo down",
    "row 21 firewall": "iptables -F; nft flush ruleset",
    "row 21 new user namespace": "unshare -Urn true",
    "row 21 new network namespace": "unshare -n true",
    "row 21 another's network namespace": "nsenter -t 1 -n true",
}


@pytest.mark.parametrize("case", CHANGES)
def test_row_21_nothing_that_is_changed_inside_opens_a_way(policy, case):
    script = (
        f"({CHANGES[case]}) >/dev/null 2>&1; "
        "python3 -c \"import socket; s=socket.create_connection(('192.0.2.1',443),timeout=5); s.sendall(b'x'*9); print(s.recv(9))\" 2>&1"
    )
    result = saggar.run_sync(script, policy, timeout_s=60)
    assert b"ConnectionResetError" in result.stdout or b"unreachable" in result.stdout, result.stdout


@pytest.mark.parametrize("family", ["AF_PACKET", "AF_VSOCK", "AF_XDP", "AF_BLUETOOTH", "AF_ALG"])
def test_row_21_no_other_socket_family(policy, family):
    script = f"import socket\ntry:\n    socket.socket(getattr(socket, {family!r}, 44), socket.SOCK_RAW)\nexcept OSError as e:\n    print('no')"
    assert run(script, policy).stdout.strip() == b"no"


@pytest.mark.parametrize("protocol", ["IPPROTO_RAW", "IPPROTO_ICMP", "IPPROTO_TCP"])
def test_row_21_no_raw_socket(policy, protocol):
    script = f"import socket\ntry:\n    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.{protocol})\nexcept OSError as e:\n    print('no')"
    assert run(script, policy).stdout.strip() == b"no"


def test_no_socket_can_be_bound_over_a_listener(policy):
    script = (
        "import socket\n"
        "for a in ('0.0.0.0', '127.0.0.1', '198.18.1.0', '203.0.113.1'):\n"
        "    for p in (80, 443):\n"
        "        s=socket.socket(); s.setsockopt(1,2,1); s.setsockopt(1,15,1)\n"
        "        try: s.bind((a,p)); s.listen(); print('bound', a, p)\n"
        "        except OSError: pass\n"
        "u=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.setsockopt(1,2,1); u.setsockopt(1,15,1)\n"
        "try: u.bind(('198.19.255.53', 53)); print('bound dns')\nexcept OSError: pass\n"
        "s=socket.create_server(('0.0.0.0', 5432)); print('own')"
    )
    assert run(script, policy).stdout.split() == [b"own"]


def test_row_27_a_relay_inside_gets_the_verdict_of_the_cell(policy):
    """A process that relays CONNECT for another one is the same cell."""
    script = (
        "import socket, threading\n"
        "l=socket.create_server(('127.0.0.1', 8888))\n"
        "def relay():\n"
        "    c,_=l.accept(); u=socket.create_connection(('198.19.255.53',3128)); u.sendall(c.recv(999)); c.sendall(u.recv(999)); c.close()\n"
        "threading.Thread(target=relay).start()\n"
        "s=socket.create_connection(('127.0.0.1',8888)); s.sendall(b'CONNECT evil.test:443 HTTP/1.1\\r\\n\\r\\n'); print(s.recv(999).split(b'\\r\\n')[0].decode())"
    )
    result = run(script, policy)
    assert result.stdout.strip() == b"HTTP/1.1 403 Forbidden"
    assert "host_not_listed" in [r["reason"] for r in records(result)]


def test_row_28_two_cells_at_once_have_their_own_verdicts_and_logs(tls_upstream):
    """The descriptor a connection arrives on is the cell: the same addresses inside, different rules outside."""
    one = Policy(
        egress=EgressPolicy(allow=(EgressRule(id="one", host="api.allowed.test", connect_to=tls_upstream.address),))
    )
    two = Policy(
        egress=EgressPolicy(allow=(EgressRule(id="two", host="b.allowed.test", connect_to=tls_upstream.address),))
    )
    code = (
        "import ssl,urllib.request as u\n"
        "for n in ('api.allowed.test', 'b.allowed.test'):\n"
        "    try: u.urlopen(f'https://{n}/', context=ssl._create_unverified_context()); print(n)\n"
        "    except OSError: pass"
    )

    async def both():
        return await asyncio.gather(*(saggar.run(["python3", "-c", code], p, timeout_s=60) for p in (one, two) * 3))

    for index, result in enumerate(asyncio.run(both())):
        name, rule, other = (
            ("api.allowed.test", "one", "b.allowed.test"),
            ("b.allowed.test", "two", "api.allowed.test"),
        )[index % 2]
        assert result.stdout.decode().split() == [name], result.stderr
        log = [r for r in records(result) if r["layer"] == "L2" and r["effect"]]
        assert {(r["effect"], r["detail"]["host"], r["rule"]) for r in log} == {
            ("allow", name, rule),
            ("deny", other, ""),
        }


def test_nothing_of_the_cell_configures_the_broker(rules, http_upstream):
    """OpenSandbox#1194: proxy variables, resolver files and hosts files of the cell are the cell's alone."""
    script = (
        "echo '127.0.0.1 evil.test' > /tmp/hosts; export HOSTALIASES=/tmp/hosts RES_OPTIONS=ndots:9 "
        "NO_PROXY='*' http_proxy=http://127.0.0.1:9 HTTPS_PROXY=http://127.0.0.1:9; "
        "curl -sS -m 10 --noproxy '*' http://api.allowed.test/a; env -u http_proxy curl -sS -m 10 http://evil.test/"
    )
    result = saggar.run_sync(script, Policy(egress=EgressPolicy(allow=tuple(rules))), timeout_s=60)
    assert result.stdout == b"hello from upstream: GET /a HTTP/1.1"
    assert result.exit_code == 6


def _broker_pid():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read()
            with open(f"/proc/{pid}/stat", encoding="ascii") as f:
                parent = int(f.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if b"broker_host" in words and parent == os.getpid():
            return int(pid)
    return 0


def test_row_62_the_brokers_death_is_the_cells(policy):
    async def main():
        code = (
            "import socket,time; socket.create_connection(('192.0.2.1',443)); print('up', flush=True); time.sleep(60)"
        )
        async with await saggar.spawn(["python3", "-c", code], policy) as process:
            assert await process.stdout.readline() == b"up\n"
            deadline = asyncio.get_running_loop().time() + 10
            while not (pid := _broker_pid()):
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
            return await process.wait()

    result = asyncio.run(main())
    assert result.cause == "broker_died"
