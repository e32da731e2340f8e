from __future__ import annotations

import os
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, os.path.dirname(__file__))
from terminated_rig import HOST, SECRET, Rig, get, ok, read_message

from saggar.core.errors import ParseError
from saggar.egress.body_keys import HOLD, KeyStream, to_be_read
from saggar.egress.terms import compile_entry

KEYS = {
    "openai": b"sk-ATTACKERATTACKERATTACKER00000000",
    "anthropic": b"sk-ant-api03-ATTACKERATTACKERATTACKER",
    "github": b"ghp_ATTACKERATTACKERATTACKER00000000",
    "github fine-grained": b"github_pat_11ATTACKER_abc",
    "aws": b"AKIAATTACKERATTACKER",
    "aws session": b"ASIAATTACKERATTACKER",
    "google": b"AIzaATTACKERATTACKERATTACKERATTACKER012",
    "gitlab": b"glpat-ATTACKERATTACKER",
    "slack": b"xoxb-123-456-abc",
    "stripe": b"sk_live_ATTACKER",
    "jwt": b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.x",
    "private key": b"-----BEGIN RSA PRIVATE KEY-----",
}
HARMLESS = [
    b"task-ATTACKERATTACKERATTACKER", b"risk-assessment-of-everything", b"-----BEGIN CERTIFICATE-----", b"sk-short", b"mask_live_x",
    b"s.getElementsByTagNameNSOfTheDocument", b"xAKIAATTACKERATTACKER", b"ask-ATTACKERATTACKERATTACKER",
]  # fmt: skip


def seen(pieces):
    stream = KeyStream()
    return any(stream.seen(p) for p in pieces)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_known_key_is_found_however_the_body_is_cut(key, size):
    body = b'{"messages":[{"key":"' + key + b'"}]}'
    assert seen(body[i : i + size] for i in range(0, len(body), size))


@pytest.mark.parametrize("text", HARMLESS)
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_what_only_looks_like_one_passes(text, size):
    body = b" " * 300 + b"word " + text + b" and more"
    assert not seen(body[i : i + size] for i in range(0, len(body), size))


@pytest.mark.parametrize(
    "form",
    [
        lambda k: b"".join(b"\\u%04x" % c for c in k),
        lambda k: b"\\u%04x" % k[0] + k[1:],
        lambda k: b"".join(b"%%%02X" % c for c in k),
        lambda k: k.replace(b"-", b"%2d").replace(b"_", b"%5F"),
        lambda k: b"".join(b"\\x%02x" % c for c in k),
        lambda k: k.decode().encode("utf-16-le"),
        lambda k: k.decode().encode("utf-32-be"),
    ],
)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_escapes_do_not_hide_it(form, size):
    body = b"a=1&key=" + form(KEYS["github"]) + b"&b=2"
    assert seen(body[i : i + size] for i in range(0, len(body), size))


@given(st.binary(max_size=600), st.integers(1, 50))
def test_a_key_behind_anything_is_found(before, size):
    body = before + b' "' + KEYS["openai"] + b'" '
    assert seen(body[i : i + size] for i in range(0, len(body), size)) or b"\\" in before[-2:] or b"%" in before[-2:]


def test_work_is_linear_and_memory_bounded():
    stream = KeyStream()
    piece = b"eyJ" * 20000 + b"sk-" * 20000 + b"\\" * 1000 + b"%" * 1000
    started = time.process_time()
    for _ in range(20):
        stream.seen(piece)
    assert time.process_time() - started < 4.0
    assert len(stream._tail) <= HOLD


@pytest.mark.parametrize(
    ("fields", "reads", "refused"),
    [
        ([(b"content-type", b"application/json")], True, False),
        ([(b"content-type", b"Application/JSON; charset=UTF-8")], True, False),
        ([(b"content-type", b"application/vnd.api+json")], True, False),
        ([(b"content-type", b"multipart/form-data; boundary=x")], True, False),
        ([(b"content-type", b"application/x-www-form-urlencoded")], True, False),
        ([(b"content-type", b"text/csv")], True, False),
        ([], True, False),
        ([(b"content-type", b"application/octet-stream")], False, False),
        ([(b"content-type", b"application/x-git-receive-pack-request"), (b"content-encoding", b"gzip")], False, False),
        ([(b"content-type", b"image/png")], False, False),
        ([(b"content-type", b"application/json"), (b"content-encoding", b"gzip")], True, True),
        ([(b"content-encoding", b"br")], True, True),
        ([(b"content-type", b"image/png"), (b"content-type", b"application/json")], True, False),
        ([(b"content-type", b"application/json; charset=utf-16")], True, True),
        ([(b"content-type", b'text/plain; charset="UTF-7"')], True, True),
    ],
)
def test_which_bodies_are_looked_at(fields, reads, refused):
    found, why_not = to_be_read(fields)
    assert (found, bool(why_not)) == (reads, refused)


# -- over the wire ---------------------------------------------------------------------------------------------------

ENTRY = {"credential": {"source": "env:REAL_KEY", "env": "K"}, "foreign_keys": "refuse"}


def post(rig, body, *fields):
    return rig.ask(get(b"/x", b"Authorization: Bearer " + rig.placeholder.encode(), *fields, method=b"POST", body=body))


def test_a_foreign_key_in_a_body_is_refused_and_alerted():
    with Rig(ok(), ENTRY) as rig:
        answer = post(rig, b'{"key":"' + KEYS["github"] + b'"}', b"Content-Type: application/json")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"X-Saggar-Reason: foreign_credential" in answer
        record = rig.port.records[-1]
        assert (record.effect, record.reason, record.detail["alert"]) == ("deny", "foreign_credential", True)
        assert KEYS["github"] not in b"".join(rig.upstream.received)
        assert KEYS["github"].decode() not in str(record.detail) + record.public
        # over chunks
        conn = rig.connect()
        conn.sendall(
            get(
                b"/x",
                b"Authorization: Bearer " + rig.placeholder.encode(),
                b"Transfer-Encoding: chunked",
                method=b"POST",
            )
        )
        for i in range(0, len(KEYS["openai"]), 5):
            part = KEYS["openai"][i : i + 5]
            conn.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        assert b"X-Saggar-Reason: foreign_credential" in read_message(conn)
        # compressed: it cannot be looked at
        answer = post(rig, b"abc", b"Content-Type: application/json", b"Content-Encoding: gzip")
        assert answer.startswith(b"HTTP/1.1 415 ")
        assert b"X-Saggar-Reason: body_unreadable" in answer
        # and everything else goes on
        assert post(rig, b'{"key":"none"}', b"Content-Type: application/json").endswith(b"hello")
        assert post(rig, KEYS["github"], b"Content-Type: application/octet-stream").endswith(b"hello")
        assert SECRET.encode() in rig.upstream.received[-1]


def test_without_the_rule_bodies_are_the_clients_business():
    with Rig(ok(), {"credential": {"source": "env:REAL_KEY", "env": "K"}}) as rig:
        assert post(rig, KEYS["github"], b"Content-Type: application/json").endswith(b"hello")


def compiled(**entry):
    return compile_entry(entry, host=HOST, rule_id="r", random=os.urandom).terms["foreign_keys"]


def test_profiles_say_it_and_the_policy_has_the_last_word():
    credential = {"source": "env:K"}
    github = {"name": "github", "owner": "a", "repo": "b"}
    assert compiled(profile=github, credential=credential) == "refuse"
    assert compiled(profile=github, credential=credential, foreign_keys="pass") == "pass"
    assert compiled(profile="openai", credential=credential) == "pass"
    assert compiled(profile="openai", credential=credential, foreign_keys="refuse") == "refuse"
    assert compiled(credential=credential) == "pass"
    for bad in ({"foreign_keys": "maybe", "credential": credential}, {"foreign_keys": "refuse"}):
        with pytest.raises(ParseError) as e:
            compiled(**bad)
        assert e.value.reason == "bad_terms"
