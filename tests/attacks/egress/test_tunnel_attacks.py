"""Rows of the behaviours page that need no credential, against a real broker from inside real namespaces.

Each asserts the verdict, that nothing was resolved or dialled, and the audit record's reason.
"""

import contextlib
import errno
import os
import re
import socket
import ssl
import subprocess

import pytest

from saggar.bench.egress.tables import BAD_CHUNKS, BAD_HTTP, BAD_NAMES, BAD_RESPONSES, DNS_TYPES, HOST, RESOLVED
from saggar.egress.alerts import ACCESS_DENIED, INTERNAL_ERROR
from saggar.policy.model import EgressRule
from saggar.testing import client_hello as h
from saggar.testing.egress_cell import EgressCell

ELSEWHERE = "203.0.113.9"
PROXY = ("198.19.255.53", 3128)


def exchange(sock, data, *, end=False):
    """What comes back for `data` until the other side ends; "RST" where that is a reset."""
    received = b""
    with sock:
        try:
            for piece in data if isinstance(data, list) else [data]:
                sock.sendall(piece)
            if end:
                sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(65536):
                received += part
        except ConnectionResetError:
            return received or "RST"
    return received


@pytest.fixture
def untouched(cell, tls_upstream, http_upstream):
    """After the test: no upstream was dialled, nothing was resolved, nothing allowed."""
    yield
    assert (tls_upstream.accepted, http_upstream.accepted) == (0, 0)
    assert [r for r in cell.records() if r["effect"] == "allow"] == []


def refused(cell, reason, **fields):
    record = cell.wait_record(effect="deny", reason=reason, **fields)
    assert record["layer"] == "L2"
    decisions = [r for r in cell.records() if r["kind"] == "egress.decision"]
    assert len(decisions) <= 1, "one attempt, one record"
    return record


# -- names (rows 1 to 9), in every protocol that carries one -------------------------------------------------------------


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_in_sni(cell, name):
    assert exchange(cell.connect(ELSEWHERE, 443), h.hello(name)) == ACCESS_DENIED
    refused(cell, BAD_NAMES[name][0])


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_in_connect(cell, name):
    reply = exchange(cell.connect(*PROXY), b"CONNECT " + name + b":443 HTTP/1.1\r\n\r\n")
    reason, status = BAD_NAMES[name]
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert b"X-Saggar-Reason: " + reason.encode() in reply
    refused(cell, reason)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_in_socks(cell, name):
    if len(name) > 255:
        pytest.skip("does not fit into a SOCKS request")
    request = b"\5\1\0\3" + bytes([len(name)]) + name + b"\x01\xbb"
    reply = exchange(cell.connect(*PROXY), [b"\5\1\0", request])
    reason = BAD_NAMES[name][0]
    assert reply[:4] == b"\5\0\5" + bytes([8 if reason == "ip_literal" else 2])
    refused(cell, reason)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_in_host(cell, name):
    reply = exchange(cell.connect(ELSEWHERE, 80), b"GET / HTTP/1.1\r\nHost: " + name + b"\r\n\r\n")
    reason, status = BAD_NAMES[name]
    if b"\0" in name:
        reason = "malformed_request"  # no field value has a NUL in it, whatever the field
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    refused(cell, reason)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", [n for n, (reason, _) in BAD_NAMES.items() if reason == "host_not_listed"])
def test_a_bad_name_in_dns(cell, name):
    out = cell.python(
        f"import socket\ntry: print(socket.getaddrinfo({name.decode()!r}, 443))\nexcept socket.gaierror as e: print(e.errno)"
    )
    assert out.strip() == str(socket.EAI_NONAME)
    refused(cell, "host_not_listed", kind="egress.dns", host=name.decode())


def test_row_4_upper_case_is_canonical(cell, pki, tls_upstream):
    done = cell.run("curl", "-sS", "-m", "10", "--cacert", pki.ca_file, "https://API.Allowed.TEST/")
    assert done.returncode == 0, done.stderr
    assert cell.wait_record(effect="allow")["detail"]["host"] == "api.allowed.test"
    assert tls_upstream.accepted == 1


# -- addresses (rows 12 to 17) -------------------------------------------------------------------------------------------


def resolving(answers):
    return EgressCell([EgressRule(id="r", host="api.allowed.test")], answers={"api.allowed.test": answers})


@pytest.mark.parametrize("address", RESOLVED)
def test_rows_12_and_13_a_listed_name_with_a_refused_address(address):
    with resolving([[address]]) as cell:
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"api.allowed.test")) == ACCESS_DENIED
        record = cell.wait_record(effect="deny", reason="address_refused")
        assert (record["detail"]["cause"], record["detail"]["address"]) == (RESOLVED[address], address)
        # the decision stands in the log before anything is resolved
        assert [r["effect"] for r in cell.records()] == ["allow", "deny"]


def test_row_13_a_mapped_address_is_what_it_maps():
    """getaddrinfo gives ::ffff:127.0.0.1 as it stands in the AAAA record."""
    with resolving([["::ffff:127.0.0.1"]]) as cell:
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"api.allowed.test")) == ACCESS_DENIED
        assert cell.wait_record(effect="deny", reason="address_refused")["detail"]["cause"] == "ipv4_mapped"


@pytest.mark.parametrize("answer", [["203.0.113.5", "127.0.0.1"], ["127.0.0.1", "203.0.113.5"], ["203.0.113.5", "::1"]])
def test_row_14_one_refused_answer_refuses_the_name(answer):
    with resolving([answer]) as cell:
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"api.allowed.test")) == ACCESS_DENIED
        assert cell.wait_record(effect="deny", reason="address_refused")["detail"]["cause"] == "loopback"


def test_row_15_the_checked_address_is_dialled_and_the_name_not_asked_again():
    with resolving([["203.0.113.5"], ["127.0.0.1"]]) as cell:
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"api.allowed.test")) == INTERNAL_ERROR
        cell.wait_record(effect="deny", reason="unreachable")
        assert cell.queries().count("1 api.allowed.test") == 1


def test_row_16_a_chain_of_names_is_judged_by_its_end():
    with resolving([["CNAME internal.corp.test", "127.0.0.1"]]) as cell:
        reply = exchange(cell.connect(ELSEWHERE, 443), h.hello(b"api.allowed.test"))
        assert reply in (ACCESS_DENIED, INTERNAL_ERROR)
        record = cell.wait_record(effect="deny")
        assert record["reason"] in ("address_refused", "resolve_failed")


def test_rows_1_and_24_no_query_leaves_for_what_is_refused():
    """Names refused in every protocol, and names allowed but not connected to: the host's resolver hears nothing."""
    with EgressCell([EgressRule(id="w", host="*.wild.test")], answers={}) as cell:
        exchange(cell.connect(ELSEWHERE, 443), h.hello(b"secret-data.evil.test"))
        exchange(cell.connect(ELSEWHERE, 80), b"GET / HTTP/1.1\r\nHost: secret-data.evil.test\r\n\r\n")
        exchange(cell.connect(*PROXY), b"CONNECT secret-data.evil.test:443 HTTP/1.1\r\n\r\n")
        assert dns_query(cell, "secret-data.evil.test", 16, tcp=True)[3] & 15 == 3
        for i in range(200):
            dns_query(cell, f"secret{i}.wild.test", 1, tcp=True)
        assert cell.queries() == []
        # and one that is allowed is asked for with its whole name, never with a search domain
        exchange(cell.connect(ELSEWHERE, 443), h.hello(b"a.wild.test"))
        cell.wait_record(effect="deny", reason="resolve_failed")
        assert set(cell.queries()) == {"1 a.wild.test", "28 a.wild.test"}


def test_row_18_the_hosts_own_address():
    with resolving([["203.0.113.5"]]) as cell:
        holder = f"/proc/{cell.broker.pid}/ns"
        if not os.access(holder + "/net", os.R_OK):
            pytest.skip("the broker's namespaces cannot be entered (it is not dumpable, and we are not root)")
        enter = ["nsenter", "--target", str(cell.broker.pid), "--user", "--net", "--preserve-credentials"]
        done = subprocess.run(
            [*enter, "ip", "addr", "add", "203.0.113.5/32", "dev", "lo"], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("the broker's namespaces cannot be entered (it is not dumpable, and we are not root)")
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"api.allowed.test")) == ACCESS_DENIED
        assert cell.wait_record(effect="deny", reason="address_refused")["detail"]["cause"] == "host_address"


@pytest.mark.parametrize("name", ["metadata.google.internal", "instance-data"])
def test_row_19_a_metadata_name_needs_more_than_a_listing(name):
    answers = {name: [["169.254.169.254"]]}
    with EgressCell([EgressRule(id="m", host=name)], answers=answers) as cell:
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(name.encode())) == ACCESS_DENIED
        refused(cell, "metadata_name")
        assert cell.queries() == []
    with EgressCell([EgressRule(id="m", host=name, allow_metadata=True)], answers=answers) as cell:
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(name.encode())) == INTERNAL_ERROR
        cell.wait_record(effect="deny", reason="unreachable")


# -- transport and capture (rows 20 to 29) -------------------------------------------------------------------------------


@pytest.mark.usefixtures("untouched")
def test_row_20_tls_without_sni(cell):
    assert exchange(cell.connect(ELSEWHERE, 443), h.hello(None)) == ACCESS_DENIED
    assert refused(cell, "no_name")["detail"]["to"] == f"{ELSEWHERE}:443"


@pytest.mark.usefixtures("untouched")
def test_row_20_a_listed_name_is_no_help_without_sni(cell):
    address = cell.python("import socket; print(socket.gethostbyname('api.allowed.test'))").strip()
    assert address == "198.18.1.0"
    assert exchange(cell.connect(address, 443), h.hello(None)) == ACCESS_DENIED
    refused(cell, "no_name")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("port", [22, 25, 53, 5432, 8443, 853, 1, 65535])
@pytest.mark.parametrize("address", ["192.0.2.1", "198.18.1.0", "2001:db8::1"])
def test_row_22_a_port_that_is_not_listed(cell, port, address):
    with pytest.raises(OSError) as caught:
        cell.connect(address, port)
    assert caught.value.errno == errno.ECONNREFUSED
    record = refused(cell, "port_not_listed", kind="egress.kernel_refused")
    assert (record["detail"]["address"], record["detail"]["port"]) == (address, port)
    assert record["detail"]["host"] == ("api.allowed.test" if address == "198.18.1.0" else address)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("address", "port"), [("192.0.2.1", 443), ("192.0.2.1", 53), ("198.18.1.0", 443), ("2001:db8::1", 443)]
)
def test_row_23_udp_is_dead(cell, address, port):
    family = "AF_INET6" if ":" in address else "AF_INET"
    out = cell.python(
        f"import socket; s=socket.socket(socket.{family}, socket.SOCK_DGRAM); s.settimeout(5)\n"
        f"s.connect(({address!r},{port})); s.send(b'x')\n"
        "try: s.recv(10)\nexcept OSError as e: print(e.errno)"
    )
    assert out.strip() == str(errno.ECONNREFUSED)
    record = refused(cell, "protocol_refused", kind="egress.kernel_refused")
    assert (record["detail"]["protocol"], record["detail"]["port"]) == ("udp", port)


def test_kernel_refusals_are_told_once_and_counted(cell):
    for _ in range(5):
        with pytest.raises(OSError):
            cell.connect("192.0.2.1", 22)
    cell.wait_record(kind="egress.kernel_refused", port=22)
    cell.remove()
    records = [r for r in cell.records() if r["kind"] == "egress.kernel_refused"]
    assert [r["reason"] for r in records] == ["port_not_listed", "repeated"]
    assert records[1]["detail"]["counts"] == {"tcp 192.0.2.1:22": 5}


def test_servers_inside_are_the_cells_own_business(cell):
    out = cell.python(
        "import socket, threading\n"
        "l=socket.create_server(('127.0.0.1',5000)); g=socket.create_server(('0.0.0.0',5001))\n"
        "for a in (('127.0.0.1',5000),('192.0.2.7',5001)):\n"
        "    c=socket.create_connection(a); c.send(b'x')\n"
        "    s,_=(l if a[1]==5000 else g).accept(); print(s.recv(1)); s.close(); c.close()\n"
        "u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
        "for f in ('127.0.0.1',):\n"
        "    try: socket.create_connection((f,5009))\n"
        "    except ConnectionRefusedError: print('closed')\n"
    )
    assert out.split() == ["b'x'", "b'x'", "closed"]
    cell.remove()
    assert [r for r in cell.records() if r["kind"] != "egress.summary"] == []


def dns_query(cell, name, kind, *, tcp=False):
    labels = b"".join(bytes([len(p)]) + p for p in name.encode().split(b".")) + b"\0"
    query = b"\x12\x34\1\0\0\1\0\0\0\0\0\0" + labels + kind.to_bytes(2, "big") + b"\0\1"
    if tcp:
        with cell.connect("198.19.255.53", 53) as sock:
            sock.sendall(len(query).to_bytes(2, "big") + query)
            size = int.from_bytes(sock.recv(2), "big")
            return sock.recv(size)
    out = cell.python(
        "import socket; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(5)\n"
        f"s.sendto({query!r},('198.19.255.53',53)); print(s.recv(4096).hex())"
    )
    return bytes.fromhex(out.strip())


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("kind", DNS_TYPES)
def test_row_24_no_type_but_a_is_answered(cell, kind):
    reply = dns_query(cell, "api.allowed.test", DNS_TYPES[kind], tcp=True)
    assert (reply[3] & 15, reply[6:8]) == (0, b"\0\0")
    reply = dns_query(cell, "data.evil.test", DNS_TYPES[kind], tcp=True)
    assert reply[3] & 15 == 3
    assert refused(cell, "host_not_listed", kind="egress.dns")["detail"]["type"] == kind


@pytest.mark.usefixtures("untouched")
def test_row_24_a_names_address_is_the_same_over_udp_and_tcp(cell):
    for name, packed in (("api.allowed.test", "c6120100"), ("b.allowed.test", "c6120102"), ("q.wild.test", "c6120105")):
        over_udp, over_tcp = dns_query(cell, name, 1), dns_query(cell, name, 1, tcp=True)
        assert over_udp == over_tcp
        assert over_udp[-4:].hex() == packed


@pytest.mark.usefixtures("untouched")
def test_row_24_random_names_under_a_wildcard_resolve_nothing_outside(cell):
    out = cell.python(
        "import socket; print(len({socket.gethostbyname(f'h{i}.wild.test') for i in range(200)}))", timeout_s=60
    )
    assert out.strip() == "200"


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\xff" * 12, b"\x12\x34\1\0\0\2" + b"\0" * 30, b"\x12\x34\1\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1"],
)
def test_broken_queries_get_formerr_or_silence_and_the_stub_lives(cell, data):
    cell.python(f"import socket; socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto({data!r},('198.19.255.53',53))")
    with cell.connect("198.19.255.53", 53) as sock:
        sock.sendall(len(data).to_bytes(2, "big") + data)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100)[2:4] in (b"", b"\x12\x34")
    assert dns_query(cell, "api.allowed.test", 1)[-4:].hex() == "c6120100"


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("port", [b"22", b"8443", b"53", b"3128"])
def test_row_26_connect_to_another_port_of_a_listed_host(cell, port):
    reply = exchange(cell.connect(*PROXY), b"CONNECT api.allowed.test:" + port + b" HTTP/1.1\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 403 ")
    refused(cell, "port_not_listed")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("inner", "reason"),
    [(b"CONNECT evil.test:443", "method_refused"), (b"CONNECT b.allowed.test:443", "method_refused")],
)
def test_row_27_connect_inside_connect(cell, inner, reason):
    with cell.connect(*PROXY) as sock:
        sock.sendall(b"CONNECT api.allowed.test:443 HTTP/1.1\r\n\r\n")
        assert sock.recv(1000) == b"HTTP/1.1 200 Connection established\r\n\r\n"
        reply = exchange(sock, inner + b" HTTP/1.1\r\nHost: api.allowed.test:443\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 405 ")
    refused(cell, reason)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("port", [443, 80])
@pytest.mark.parametrize(
    "data", [b"SSH-2.0-x\r\n", b"EHLO a.test\r\n", b"\0\0\0\0", b"\x17\x03\x03\0\1x", b"get / http/1.1\r\n\r\n"]
)
def test_row_29_another_protocol_is_reset(cell, port, data):
    assert exchange(cell.connect(ELSEWHERE, port), data) == "RST"
    refused(cell, "unknown_protocol")


@pytest.mark.usefixtures("untouched")
def test_a_client_that_says_nothing_is_recorded(cell):
    exchange(cell.connect(ELSEWHERE, 443), b"", end=True)
    refused(cell, "no_first_flight")


# -- TLS (rows 30 to 32) -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", [b"b.allowed.test", b"x.wild.test"])
def test_row_30_another_listed_name_inside_connect(cell, name):
    with cell.connect(*PROXY) as sock:
        sock.sendall(b"CONNECT api.allowed.test:443 HTTP/1.1\r\nHost: api.allowed.test:443\r\n\r\n" + h.hello(name))
        reply = exchange(sock, b"")
    assert reply == b"HTTP/1.1 200 Connection established\r\n\r\n" + ACCESS_DENIED
    assert refused(cell, "name_mismatch")["detail"]["expected"] == "api.allowed.test"


@pytest.mark.usefixtures("untouched")
def test_row_30_another_listed_name_inside_socks(cell):
    name = b"api.allowed.test"
    request = b"\5\1\0\3" + bytes([len(name)]) + name + b"\x01\xbb"
    reply = exchange(cell.connect(*PROXY), [b"\5\1\0", request, h.hello(b"b.allowed.test")])
    assert reply == b"\5\0" + b"\5\0\0\1\0\0\0\0\0\0" + ACCESS_DENIED
    refused(cell, "name_mismatch")


@pytest.mark.usefixtures("untouched")
def test_row_30_another_listed_name_at_a_names_address(cell):
    assert exchange(cell.connect("198.18.1.0", 443), h.hello(b"b.allowed.test")) == ACCESS_DENIED
    refused(cell, "name_mismatch")


@pytest.mark.usefixtures("untouched")
def test_row_30_no_name_inside_connect(cell):
    with cell.connect(*PROXY) as sock:
        sock.sendall(b"CONNECT api.allowed.test:443 HTTP/1.1\r\n\r\n" + h.hello(None))
        assert exchange(sock, b"").endswith(ACCESS_DENIED)
    refused(cell, "no_name")


@pytest.mark.usefixtures("untouched")
def test_row_31_ech_hides_a_name(cell):
    assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"api.allowed.test", h.ECH)) == ACCESS_DENIED
    refused(cell, "ech_unreadable")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    "data",
    [
        h.records(h.message(h.body(h.sni(b"api.allowed.test", b"evil.test")))),
        h.records(h.message(h.body(h.sni(b"api.allowed.test"), h.sni(b"evil.test")))),
        h.records(h.message(h.body(h.sni(b"api.allowed.test", kind=7)))),
        h.records(h.message(h.body(h.sni(b"api.allowed.test"), tail=b"x"))),
    ],
    ids=["two names", "two extensions", "another type", "bytes behind"],
)
def test_row_32_a_broken_hello(cell, data):
    assert exchange(cell.connect(ELSEWHERE, 443), data) == ACCESS_DENIED
    refused(cell, "malformed_hello")


@pytest.mark.parametrize("record_size", [1, 7, 100])
def test_row_32_a_hello_in_pieces(cell, tls_upstream, record_size):
    """Many records, many segments: read as one, and passed on untouched."""
    data = h.hello(b"evil.test", size=record_size)
    sock = cell.connect(ELSEWHERE, 443)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert exchange(sock, [data[i : i + 3] for i in range(0, len(data), 3)]) == ACCESS_DENIED
    refused(cell, "host_not_listed")
    assert tls_upstream.accepted == 0


def test_a_hello_in_single_bytes_reaches_the_upstream_whole(cell, client_context, tls_upstream):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context.wrap_bio(incoming, outgoing, server_hostname="api.allowed.test")
    with cell.connect(ELSEWHERE, 443) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        for byte in outgoing.read():
            sock.sendall(bytes([byte]))
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(65536))
    assert tls_upstream.accepted == 1


# -- plain HTTP (rows 36 to 46) ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("case", BAD_HTTP)
def test_bad_http(cell, case):
    data, status, reason = BAD_HTTP[case]
    reply = exchange(cell.connect(ELSEWHERE, 80), data)
    assert reply.startswith(b"HTTP/1.1 %d " % status), reply
    assert b"X-Saggar-Reason: " + reason.encode() in reply
    refused(cell, reason)


@pytest.mark.usefixtures("untouched")
def test_row_36_host_differs_from_the_names_address(cell):
    reply = exchange(cell.connect("198.18.1.0", 80), b"GET / HTTP/1.1\r\nHost: b.allowed.test\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 421 ")
    refused(cell, "name_mismatch")


@pytest.mark.usefixtures("untouched")
def test_row_37_absolute_form_inside_a_tunnel(cell):
    with cell.connect(*PROXY) as sock:
        sock.sendall(b"CONNECT api.allowed.test:80 HTTP/1.1\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")
        reply = exchange(sock, b"GET http://b.allowed.test/ HTTP/1.1\r\nHost: b.allowed.test\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 421 ")
    refused(cell, "name_mismatch")


@pytest.mark.parametrize("chunks", BAD_CHUNKS)
def test_row_38_bad_chunks_are_no_whole_request_upstream(cell, http_upstream, chunks):
    data = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    reply = exchange(cell.connect(ELSEWHERE, 80), data)
    assert reply == "RST" or reply.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 502 "))
    assert b"0\r\n\r\n" not in http_upstream.bytes
    assert b"hello from upstream" not in (reply if isinstance(reply, bytes) else b"")


def test_row_40_and_41_overrides_go_and_the_connection_list_takes_nothing(cell, http_upstream):
    fields = (
        b"X-HTTP-Method-Override: DELETE\r\nX-Forwarded-Host: evil.test\r\nX-Original-URL: /admin\r\n"
        b"Forwarded: host=evil.test\r\nX-Rewrite-URL: /admin\r\nConnection: X-Keep, close\r\nX-Keep: yes\r\n"
    )
    reply = exchange(cell.connect(ELSEWHERE, 80), b"GET /a HTTP/1.1\r\n" + HOST + fields + b"\r\n")
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert http_upstream.bytes == b"GET /a HTTP/1.1\r\nHost: api.allowed.test\r\nX-Keep: yes\r\n\r\n"


def test_row_42_each_pipelined_request_has_its_own_decision(cell, http_upstream):
    data = (
        b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\nGET /2 HTTP/1.1\r\nHost: b.allowed.test\r\n\r\n"
        b"GET /3 HTTP/1.1\r\nHost: evil.test\r\n\r\nGET /4 HTTP/1.1\r\n" + HOST + b"\r\n"
    )
    reply = exchange(cell.connect(ELSEWHERE, 80), data)
    assert re.findall(rb"HTTP/1\.1 (\d{3}) ", reply) == [b"200", b"200", b"403"]
    decisions = [(r["effect"], r["detail"]["host"]) for r in cell.records() if r["kind"] == "egress.decision"]
    assert decisions == [("allow", "api.allowed.test"), ("allow", "b.allowed.test"), ("deny", "evil.test")]
    # two hosts never share an upstream connection
    assert [bytes(r).split(b"\r\n")[1] for r in http_upstream.received] == [
        b"Host: api.allowed.test",
        b"Host: b.allowed.test",
    ]


@pytest.mark.parametrize(
    ("method", "status"), [(b"GET", b"200"), (b"DELETE", b"200"), (b"POST", b"502"), (b"PATCH", b"502")]
)
def test_what_an_upstream_left_unanswered_does_not_happen_twice(cell, http_upstream, method, status):
    """A kept connection that ends as it is used: only what is idempotent is sent again."""
    seen = []

    def respond(head):
        seen.append(head.split(b" ")[0])
        return None if len(seen) == 2 else b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    http_upstream.respond = respond
    data = b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n" + method + b" /2 HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    reply = exchange(cell.connect(ELSEWHERE, 80), data)
    assert re.findall(rb"HTTP/1\.1 (\d{3}) ", reply) == [b"200", status]
    assert seen == [b"GET", method] + [method] * (status == b"200")
    if status == b"502":
        assert cell.wait_record(effect="deny", reason="bad_response")


def test_trailers_of_a_plain_host_change_nothing(cell, http_upstream):
    lines = [
        b"Host: evil.test",
        b"Content-Length: 9",
        b"X-HTTP-Method-Override: PUT",
        b"Transfer-Encoding: chunked",
        b"Authorization: x",
    ]
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n"
    exchange(cell.connect(ELSEWHERE, 80), head + b"".join(t + b"\r\n" for t in [*lines, b"X-Fine: 1"]) + b"\r\n")
    assert bytes(http_upstream.received[0]).endswith(b"5\r\nhello\r\n0\r\nx-fine: 1\r\n\r\n")
    assert cell.wait_record(effect="allow", reason="listed")


def test_row_43_a_request_in_a_body_stays_a_body(cell, http_upstream):
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n"
    body = b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(smuggled)
    seen = []
    http_upstream.respond = lambda head: (seen.append(head), b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")[1]
    assert exchange(cell.connect(ELSEWHERE, 80), body + smuggled).startswith(b"HTTP/1.1 200 ")
    assert [s.split(b"\r\n")[0] for s in seen] == [b"POST /a HTTP/1.1"]


@pytest.mark.parametrize("case", BAD_RESPONSES)
def test_row_46_a_bad_response_is_a_502_and_ends_the_upstream(cell, http_upstream, case):
    http_upstream.respond = lambda _: BAD_RESPONSES[case]
    reply = exchange(cell.connect(ELSEWHERE, 80), b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
    assert b"HTTP/1.1 502 Bad Gateway\r\n" in reply
    assert b"HTTP/1.1 200" not in reply
    cell.wait_record(effect="deny", reason="bad_response")


def test_row_46_a_cut_response_is_a_reset(cell, http_upstream):
    http_upstream.respond = lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"
    http_upstream.requests_each = 1
    with cell.connect(ELSEWHERE, 80) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        received = b""
        with pytest.raises(ConnectionResetError):
            while part := sock.recv(1000):
                received += part
    assert received.endswith(b"\r\n\r\nabc")


def test_alt_svc_does_not_reach_the_client(cell, http_upstream):
    http_upstream.respond = lambda _: b'HTTP/1.1 200 OK\r\nAlt-Svc: h3=":443"\r\nContent-Length: 0\r\n\r\n'
    data = b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    reply = exchange(cell.connect(ELSEWHERE, 80), data)
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"lt-" not in reply


# -- budgets and lifecycle (rows 61, 62) ---------------------------------------------------------------------------------


def test_row_61_a_tightened_policy_cuts_open_connections(cell, rules, client_context):
    kept = [r for r in rules if r.host != "api.allowed.test"]
    with (
        client_context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname="api.allowed.test") as cut,
        client_context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname="b.allowed.test") as alive,
    ):
        cell.update(kept)
        with contextlib.suppress(ConnectionResetError):
            assert cut.recv(1) == b""
        alive.sendall(b"GET / HTTP/1.1\r\nHost: b.allowed.test\r\n\r\n")
        assert alive.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert cell.wait_record(effect="deny", reason="revoked")["detail"]["host"] == "api.allowed.test"
    assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"api.allowed.test")) == ACCESS_DENIED


def test_a_host_allowed_while_running_works_at_the_next_connection(cell, rules, tls_upstream):
    assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"new.test")) == ACCESS_DENIED
    cell.update([*rules, EgressRule(id="new", host="new.test", connect_to=tls_upstream.address)])
    assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"new.test")) != ACCESS_DENIED
    assert cell.wait_record(effect="allow")["rule"] == "new"
    assert dns_query(cell, "new.test", 1)[3] & 15 == 0


def test_row_62_an_audit_log_that_cannot_be_written_fails_closed(cell, tls_upstream):
    assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"evil.test")) == ACCESS_DENIED
    os.unlink(cell.audit_path)
    assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"api.allowed.test")) == "RST"
    assert cell.wait_event("fatal")["cause"].startswith("audit_failed")
    assert tls_upstream.accepted == 0
    with pytest.raises(OSError):
        cell.connect(ELSEWHERE, 443)


def test_row_62_a_dead_broker_leaves_nothing_open(cell, client_context):
    with client_context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname="api.allowed.test") as tls:
        cell.broker.kill()
        cell.broker.wait()
        with pytest.raises(OSError):
            tls.sendall(b"x" * 100)
            if not tls.recv(1):
                raise ConnectionResetError
    with pytest.raises(OSError):
        cell.connect(ELSEWHERE, 443)


def test_the_brokers_end_is_the_end_of_its_control_socket(cell):
    cell.control.shutdown(socket.SHUT_RDWR)
    assert cell.broker.wait(timeout=10) == 0


def test_the_filter_lets_the_real_kernels_refusals_through_and_loopback_not(cell):
    """With the filter attached before the bind, as the launcher does it."""
    cell.python(
        "import socket\n"
        "for f, a in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1'), (socket.AF_INET, '192.0.2.1'), (socket.AF_INET6, '2001:db8::2')):\n"
        "    s = socket.socket(f); e = s.connect_ex((a, 7)); assert e == 111, e\n"
        "    u = socket.socket(f, socket.SOCK_DGRAM); u.sendto(b'x', (a, 8))\n"
    )
    cell.wait_record(kind="egress.kernel_refused", address="2001:db8::2", protocol="udp")
    found = {(r["detail"]["address"], r["detail"]["protocol"]) for r in cell.records()}
    assert found == {(a, p) for a in ("192.0.2.1", "2001:db8::2") for p in ("tcp", "udp")}


def test_row_17_a_peer_that_is_not_the_one_dialled(rules, tls_upstream):
    """What cannot be brought about on a sound kernel: the peer's address, told wrongly."""
    tweak = "import saggar.egress.dial_host as d; d._peer = lambda _: '203.0.113.77'"
    with EgressCell(rules, tweak=tweak) as cell:
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"api.allowed.test")) == INTERNAL_ERROR
        detail = cell.wait_record(effect="deny", reason="peer_mismatch")["detail"]
        assert (detail["dialled"], detail["peer"]) == ("127.0.0.1", "203.0.113.77")
        assert tls_upstream.bytes == b""


@pytest.mark.parametrize("address", ["2001:db8::7", "::ffff:203.0.113.9", "64:ff9b::7f00:1", "fd00:ec2::254"])
def test_row_25_an_ipv6_destination_has_the_same_policy(cell, client_context, address):
    with client_context.wrap_socket(cell.connect(address, 443), server_hostname="api.allowed.test") as tls:
        tls.sendall(b"GET / HTTP/1.1\r\nHost: api.allowed.test\r\n\r\n")
        assert tls.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert exchange(cell.connect(address, 443), h.hello(b"evil.test")) == ACCESS_DENIED
    cell.wait_record(effect="deny", reason="host_not_listed", host="evil.test")


def test_a_protocol_where_the_server_speaks_first(rules):
    """SSH and its kind, on a port of their own: the client's silence is not waited out, and nothing is read into it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        rule = EgressRule(id="ssh", host="git.test", ports=(22,), connect_to=server.getsockname())
        with EgressCell([*rules, rule]) as cell:
            address = cell.python("import socket; print(socket.gethostbyname('git.test'))").strip()
            with cell.connect(address, 22) as sock:
                upstream, _ = server.accept()
                with upstream:
                    upstream.sendall(b"SSH-2.0-server\r\n")
                    assert sock.recv(100) == b"SSH-2.0-server\r\n"
                    sock.sendall(b"SSH-2.0-client\r\n")
                    assert upstream.recv(100) == b"SSH-2.0-client\r\n"
            record = cell.wait_record(effect="allow")
            assert (record["detail"]["host"], record["detail"]["scheme"]) == ("git.test", "tcp")
            # a name inside that says otherwise is judged like anywhere
            assert exchange(cell.connect(address, 22), h.hello(b"api.allowed.test")) == ACCESS_DENIED
            cell.wait_record(effect="deny", reason="port_not_listed")


@pytest.mark.usefixtures("untouched")
def test_an_urgent_byte_is_part_of_what_is_judged(cell):
    """Left out of the stream it would be let in by the next urgent byte, after the name was read."""
    data = h.hello(b"api.allowed.test")
    with cell.connect(ELSEWHERE, 443) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(data[:60])
        sock.send(b"x", socket.MSG_OOB)
        reply = exchange(sock, data[60:], end=True)
    assert reply == ACCESS_DENIED
    assert cell.wait_record(effect="deny")["reason"] in ("malformed_hello", "host_not_listed", "bad_host_name")


def connections(cell, name, count, *, to=ELSEWHERE, port=443):
    return [exchange(cell.connect(to, port), h.hello(name)) for _ in range(count)]


def test_a_destination_that_was_allowed_before_is_decided_by_the_rules_of_now(tls_upstream):
    """The first connection to a place is worked out, further ones are remembered: not beyond the rules that allowed it."""
    rule = EgressRule(id="api", host="api.allowed.test", ports=(443,), connect_to=tls_upstream.address)
    other = EgressRule(id="b", host="b.allowed.test", ports=(443,), connect_to=tls_upstream.address)
    name = b"api.allowed.test"
    with EgressCell([rule, other]) as cell:
        assert ACCESS_DENIED not in connections(cell, name, 3)
        allowed = [r for r in cell.records() if r["effect"] == "allow"]
        assert len(allowed) == 3
        assert len({str({**r, "seq": 0, "time": 0, "hash": 0, "prev": 0}) for r in allowed}) == 1
        # through the address that stands for another name, and with another name hidden in it
        address = cell.python(f"import socket; print(socket.gethostbyname({other.host!r}))").strip()
        assert connections(cell, name, 1, to=address) == [ACCESS_DENIED]
        assert cell.wait_record(effect="deny", reason="name_mismatch")["detail"]["expected"] == other.host
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(name, h.ECH)) == ACCESS_DENIED
        cell.wait_record(effect="deny", reason="ech_unreadable")
        cell.update([other])
        assert connections(cell, name, 1) == [ACCESS_DENIED]
        cell.wait_record(effect="deny", reason="host_not_listed")
        cell.update([rule, other])
        assert ACCESS_DENIED not in connections(cell, name, 2)
        assert cell.remove()["allowed"] == tls_upstream.accepted == 5


def test_a_budget_counts_the_connections_that_are_remembered(tls_upstream):
    rule = EgressRule(id="api", host="api.allowed.test", ports=(443,), connect_to=tls_upstream.address)
    with EgressCell([rule], budget='{"requests": 3}') as cell:
        replies = connections(cell, b"api.allowed.test", 5)
        assert [r == ACCESS_DENIED for r in replies] == [False] * 3 + [True] * 2
        cell.wait_record(effect="deny", reason="budget_requests")
        assert tls_upstream.accepted == 3


def test_nothing_follows_a_remembered_decision_that_cannot_be_recorded(tls_upstream):
    rule = EgressRule(id="api", host="api.allowed.test", ports=(443,), connect_to=tls_upstream.address)
    with EgressCell([rule]) as cell:
        assert ACCESS_DENIED not in connections(cell, b"api.allowed.test", 2)
        os.unlink(cell.audit_path)
        assert connections(cell, b"api.allowed.test", 1) == ["RST"]
        assert cell.wait_event("fatal")["cause"].startswith("audit_failed")
        assert tls_upstream.accepted == 2
