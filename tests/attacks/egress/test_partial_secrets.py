"""A secret that comes back in pieces, in another's escapes, or after it was rotated: against the real broker."""

import base64
import html
import json
import re
import ssl
from urllib.parse import quote

import pytest

from saggar.egress.websocket import accept_value
from saggar.policy.model import EgressRule
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import Upstream

HOST = "api.allowed.test"
SECRET = "real+secret/value=0123456789&abcdefghijk"
HALF = len(SECRET) // 2
KEY = base64.b64encode(b"0123456789abcdef")


class There:
    """One bound host, and what its upstream answers: `says(head)` gives the whole answer."""

    def __init__(self, pki, source="env:REAL", **http):
        self.says = lambda head: None
        self.upstream = Upstream(context=pki.server_context(), respond=lambda head: self.says(head))
        terms = {
            "ca": pki.ca_file,
            "credential": {"source": source, "env": "KEY", **http.pop("credential", {})},
            **http,
        }
        self.rule = lambda: EgressRule(id="api", host=HOST, connect_to=self.upstream.address, http=json.dumps(terms))

    def __enter__(self):
        self.upstream.__enter__()
        self.cell = EgressCell([self.rule()], env={"REAL": SECRET})
        self.cell.__enter__()
        return self

    def __exit__(self, *args):
        self.cell.__exit__(*args)
        self.upstream.__exit__(*args)

    def connect(self):
        context = ssl.create_default_context(cadata=self.cell.ca_pem)
        return context.wrap_socket(self.cell.connect("203.0.113.9", 443), server_hostname=HOST)

    def head(self, path="/x", *fields):
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {HOST}",
            f"Authorization: Bearer {self.cell.environment['KEY']}",
            *fields,
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    def get(self, path="/x", *fields):
        with self.connect() as sock:
            sock.sendall(self.head(path, *fields))
            return whole(sock)


def whole(sock):
    """Until the answer's length is there, or the end."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
            head, mark, body = data.partition(b"\r\n\r\n")
            size = re.search(rb"(?i)content-length: (\d+)", head)
            if mark and size and len(body) >= int(size[1]):
                break
    except (OSError, ssl.SSLError):
        pass
    return data


def answer(body, status="200 OK", *fields):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture
def there(pki):
    with There(pki) as there:
        yield there


def most_of_it(data):
    """Whether more than half of the secret stands in one piece in what the client got."""
    return any(SECRET[i : i + HALF + 1].encode() in data for i in range(len(SECRET) - HALF))


# -- parts of a stored echo

WINDOWS = ["0-0", "5-9", "0-10", "10-30", "0-19,20-39", "-5", "-40", "0-39"]


@pytest.mark.parametrize("window", WINDOWS)
def test_a_range_too_narrow_to_be_searched_is_asked_for_as_the_whole(there, window):
    there.says = lambda head: answer(
        SECRET.encode() if b"range" not in head.lower() else SECRET[:10].encode(), "200 OK"
    )
    got = there.get("/echo", f"Range: bytes={window}")
    assert b"range" not in there.upstream.bytes.lower()
    assert SECRET[:10].encode() not in got


def test_a_range_of_some_size_goes_on(there):
    there.says = lambda head: answer(b"x" * 4096, "206 Partial Content", "Content-Range: bytes 0-4095/99999")
    assert there.get("/large", "Range: bytes=0-4095").endswith(b"x" * 4096)
    assert b"Range: bytes=0-4095".lower() in there.upstream.bytes.lower()


@pytest.mark.parametrize("size", [HALF + 1, len(SECRET) - 1])
def test_what_a_part_begins_or_an_answer_ends_with(there, size):
    there.says = lambda head: answer(
        SECRET[-size:].encode() + b" " * 3000 + SECRET[:size].encode(), "206 Partial Content"
    )
    got = there.get("/large", "Range: bytes=90000-")
    assert got.startswith(b"HTTP/1.1 206 ")
    assert len(got.partition(b"\r\n\r\n")[2]) == 3000 + 2 * size
    assert not most_of_it(got)
    assert there.cell.wait_record(reason="secret_redacted")


@pytest.mark.parametrize("cut", range(len(SECRET) // 4, 1 + len(SECRET) * 3 // 4))
def test_two_parts_do_not_give_the_whole(there, cut):
    """Where a client may choose where a part begins and ends, it chooses the middle of the secret twice."""
    there.says = lambda head: (
        answer(b" " * 3000 + SECRET[:cut].encode(), "206 Partial Content")
        if b"bytes=0-" in head
        else answer(SECRET[cut:].encode() + b" " * 3000, "206 Partial Content")
    )
    first = there.get("/large", f"Range: bytes=0-{2999 + cut}").rpartition(b" ")[2]
    second = there.get("/large", f"Range: bytes={3000 + cut}-9999").partition(b"\r\n\r\n")[2].partition(b" ")[0]
    assert (len(first), len(second)) == (cut, len(SECRET) - cut)
    told = sum(a == b for a, b in zip(first.decode() + second.decode(), SECRET, strict=True))
    assert told <= len(SECRET) // 2


# -- WebSocket


def frame(payload, *, fin=True, opcode=1):
    return bytes(((0x80 if fin else 0) | opcode, len(payload))) + payload


MESSAGES = {
    "fragments": [frame(SECRET[:-1].encode(), fin=False), frame(SECRET[-1:].encode(), opcode=0)],
    "messages": [frame(SECRET[:13].encode()), frame(SECRET[13:26].encode()), frame(SECRET[26:].encode())],
    "a frame in pieces": [bytes((0x81, len(SECRET))) + SECRET[:-3].encode(), SECRET[-3:].encode()],
    "around a ping": [
        frame(SECRET[:20].encode(), fin=False) + frame(b"are you there", opcode=9),
        frame(SECRET[20:].encode(), opcode=0),
    ],
    "pings": [frame(SECRET[:15].encode(), opcode=9), frame(SECRET[15:30].encode(), opcode=9), frame(SECRET[30:].encode(), opcode=9)],
    "all but the end": [frame(SECRET[:-1].encode()), frame(b"and no more")],
    "base64 in fragments": [
        frame(base64.b64encode(SECRET.encode())[:-4], fin=False),
        frame(base64.b64encode(SECRET.encode())[-4:], opcode=0),
    ],
}  # fmt: skip


def switched(fields=b""):
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        + accept_value(KEY)
        + b"\r\n"
        + fields
        + b"\r\n"
    )


def upgrade(there, *fields):
    asked = (
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: " + KEY.decode(),
    )
    return there.head("/ws", *asked, *fields)


#: a client's frame that the scripted upstream takes for the end of a head: its turn to speak
NEXT = b"\x81\x86\0\0\0\0go\r\n\r\n"


@pytest.mark.parametrize("name", MESSAGES)
def test_a_socket_gives_no_more_than_half_of_the_secret(pki, name):
    with There(pki, websocket=True) as there:
        frames = iter(MESSAGES[name])
        there.says = lambda head: switched() if b"HTTP/1.1" in head else next(frames, None)
        seen = b""
        with there.connect() as sock:
            sock.sendall(upgrade(there))
            while b"\r\n\r\n" not in seen:
                seen += sock.recv(4096)
            sock.settimeout(0.5)
            for _ in MESSAGES[name]:
                try:
                    sock.sendall(NEXT)
                    while data := sock.recv(4096):
                        seen += data
                except (OSError, ssl.SSLError):
                    continue
        # headers of frames stand between pieces: they are taken out before looking
        plain = re.sub(rb"[\x80-\x8a\x00\x01\x09][\x00-\x7f]", b"", seen)
        assert not most_of_it(seen)
        assert not most_of_it(plain)
        there.cell.wait_record(reason="secret_in_answer")


def masked(payload, *, fin=True, opcode=1):
    """A client's frame, under a mask of nothing."""
    return bytes(((0x80 if fin else 0) | opcode, 0x80 | len(payload), 0, 0, 0, 0)) + payload


@pytest.mark.parametrize("between", [b"are you there", b""])
@pytest.mark.parametrize("what", ["placeholder", "foreign key"])
def test_a_ping_within_a_message_hides_nothing_in_it(pki, what, between):
    with There(pki, websocket=True, foreign_keys="refuse") as there:
        key = there.cell.environment["KEY"] if what == "placeholder" else "ghp_" + "a1B2" * 9
        cut = 20 if what == "placeholder" else 6  # a key's form is known by some of it
        there.says = lambda head: switched() if b"HTTP/1.1" in head else None
        with there.connect() as sock:
            sock.sendall(upgrade(there))
            seen = sock.recv(4096)
            while b"\r\n\r\n" not in seen:
                seen += sock.recv(4096)
            sock.sendall(masked(key[:cut].encode(), fin=False))
            sock.sendall(masked(between, opcode=9))
            sock.sendall(masked(key[cut:].encode() + b" ", opcode=0))
            got = whole(sock)
        assert got.startswith(b"\x88\x02\x03\xf0")
        assert there.cell.wait_record(reason="canary" if what == "placeholder" else "foreign_credential")
        assert key[cut:].encode() not in there.upstream.bytes


def test_messages_of_a_socket_do_not_wait_for_the_next(pki):
    """A message may end as the secret begins: whoever waits for it gets it at once."""
    with There(pki, websocket=True) as there:
        there.says = lambda head: switched() if b"HTTP/1.1" in head else frame(b"the real")
        with there.connect() as sock:
            sock.sendall(upgrade(there))
            seen = sock.recv(4096)
            sock.settimeout(5)
            sock.sendall(NEXT)
            while not seen.endswith(b"the real"):
                seen += sock.recv(4096)


def test_a_protocol_that_nobody_asked_for_is_no_agreement(pki):
    """The upstream's 101 has one field of its own choice, and it is not searched."""
    with There(pki, websocket=True) as there:
        there.says = lambda head: switched(b"Sec-WebSocket-Protocol: %s\r\n" % SECRET.encode())
        with there.connect() as sock:
            sock.sendall(upgrade(there, "Sec-WebSocket-Protocol: chat, superchat"))
            got = whole(sock)
        assert got.startswith(b"HTTP/1.1 502 ")
        assert SECRET.encode() not in got
        there.says = lambda head: switched(b"Sec-WebSocket-Protocol: superchat\r\n")
        with there.connect() as sock:
            sock.sendall(upgrade(there, "Sec-WebSocket-Protocol: chat, superchat"))
            assert b"Sec-WebSocket-Protocol: superchat\r\n" in sock.recv(4096)


# -- escapes

TEXT = SECRET
ENCODED = {
    "percent, JavaScript": quote(TEXT, safe="!'()*~"),
    "percent, lower case": re.sub("%..", lambda m: m[0].lower(), quote(TEXT, safe="")),
    "percent, twice": quote(quote(TEXT, safe=""), safe=""),
    "percent, every byte": "".join(f"%{ord(c):02x}" for c in TEXT),
    "JSON, .NET": TEXT.replace("+", "\\u002B").replace("&", "\\u0026"),
    "JSON, Gson": TEXT.replace("=", "\\u003d").replace("&", "\\u0026"),
    "JSON, Go": TEXT.replace("&", "\\u0026"),
    "JSON, PHP": TEXT.replace("/", "\\/"),
    "JSON, PHP in JSON": TEXT.replace("/", "\\\\/"),
    "JSON, every byte": "".join(f"\\u{ord(c):04X}" for c in TEXT),
    "HTML, Python": html.escape(TEXT),
    "HTML, Go": html.escape(TEXT).replace("+", "&#43;"),
    "HTML, Handlebars": html.escape(TEXT).replace("=", "&#x3D;"),
    "HTML, Mustache": html.escape(TEXT).replace("/", "&#x2F;").replace("=", "&#x3D;"),
    "base64url in JSON": base64.urlsafe_b64encode(b"x" + TEXT.encode()).decode(),
    "base64 in PHP's JSON": base64.b64encode(b"xy??>" + TEXT.encode()).decode().replace("/", "\\/"),
}


def test_what_the_usual_encoders_make_of_the_secret(there):
    for name, text in ENCODED.items():
        there.says = lambda head, text=text: answer(b"you said: " + text.encode() + b" <end>")
        got = there.get("/echo")
        assert got.startswith(b"HTTP/1.1 200 "), name
        # eight characters of it and what stands around them
        body = got.partition(b"you said: ")[2]
        assert len(body) == len(text) + 6, name
        assert not any(text[i : i + 12].encode() in body for i in range(len(text) - 12)), (name, body)


def test_the_password_of_a_secret_with_its_user(pki, monkeypatch):
    """`user:password` as one secret: an upstream may tell the two apart."""
    monkeypatch.setattr(f"{__name__}.SECRET", "somebody:correct-horse-battery")
    with There(pki, credential={"kind": "basic"}) as there:
        basic = base64.b64encode(b"x:" + there.cell.environment["KEY"].encode()).decode()
        there.says = lambda head: answer(b"hello somebody, your password is correct-horse-battery.")
        head = f"GET /x HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Basic {basic}\r\n\r\n".encode()
        with there.connect() as sock:
            sock.sendall(head)
            got = whole(sock)
        assert got.endswith(b"hello somebody, your password is " + b"*" * 21 + b"."), got


# -- rotation


def test_a_key_that_was_rotated_is_looked_for_still(pki, tmp_path):
    """It may be good for a while yet, and an upstream may have kept what it was asked with."""
    path = tmp_path / "key"
    path.touch(mode=0o600)
    keys = ["first-key-0123456789", "second-key-0123456789", "third-key-0123456789"]
    path.write_text(keys[0])
    with There(pki, source=f"file:{path}") as there:
        there.says = lambda head: answer(" ".join(keys).encode())
        for i, key in enumerate(keys):
            path.write_text(key)
            got = there.get()
            assert f"Bearer {key}".encode() in there.upstream.bytes
            assert not [k for k in keys[: i + 1] if k.encode() in got]
