"""Invariants of the terminated path's pure modules."""

from __future__ import annotations

import base64
from fnmatch import fnmatchcase
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from saggar.core.errors import ParseError
from saggar.egress.glob import LIMIT_STARS, PathPattern
from saggar.egress.headers import DROP, PASS, classify
from saggar.egress.path import canonical, canonical_path
from saggar.egress.placeholder import Canary, CanaryStream
from saggar.egress.redact import Redactor, Secrets

TARGETS = st.binary(max_size=60).map(lambda b: b"/" + b) | st.text(alphabet="/.%;2eEfF5cC\\?#a&=+~", max_size=40).map(
    lambda s: b"/" + s.encode()
)


@given(TARGETS)
def test_path_i1_i3_one_form_or_refused(target):
    try:
        once = canonical(target)
    except ParseError:
        return
    assert canonical(once.raw) == once
    segments = once.path.split(b"/")[1:]
    assert all(s not in (b".", b"..") for s in segments)
    assert all(segments[:-1])
    assert not set(once.raw) & set(b"\\;# \0\r\n\t") - (set(b";") if once.query else set())
    assert once.raw.isascii()


@given(TARGETS)
def test_path_kept_slash_never_hides_a_dot_segment(target):
    try:
        path = canonical_path(target.partition(b"?")[0], keep_slash=True)
    except ParseError:
        return
    pieces = path.replace(b"%2F", b"/").split(b"/")[1:]
    assert b".." not in pieces
    assert b"." not in pieces


SECRET = st.binary(min_size=8, max_size=40)


def forms(secret: bytes, lead: bytes) -> list[bytes]:
    return [
        secret,
        quote(secret, safe="").encode(),
        base64.b64encode(lead + secret),
        base64.urlsafe_b64encode(lead + secret),
        b"".join(b"\\u%04x" % b for b in secret),
    ]


@given(
    SECRET,
    st.binary(max_size=5),
    st.binary(max_size=30),
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
    st.integers(0, 4),
)
def test_redact_i1_i2_nothing_leaves_and_lengths_stay(secret, lead, around, cuts, which):
    shown = forms(secret, lead)[which]
    data = around + shown + around + secret
    redactor = Redactor(Secrets([(secret, "")]))
    out, at = b"", 0
    for cut in cuts:
        out += redactor.feed(data[at : at + cut])
        at += cut
    out += redactor.last(data[at:])
    assert len(out) == len(data)
    assert secret not in out or set(secret) == {0x2A}
    for core in forms(secret, lead)[:2]:
        assert core not in out or set(core) == {0x2A}


@given(
    st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", min_size=20, max_size=60),
    st.binary(max_size=8),
    st.binary(max_size=40),
    st.integers(1, 40),
    st.integers(0, 4),
)
def test_placeholder_i3_found_across_cuts(placeholder, lead, around, step, which):
    data = around + forms(placeholder.encode(), lead)[which] + around
    stream = CanaryStream(Canary([placeholder]))
    assert any(stream.seen(data[i : i + step]) for i in range(0, len(data), step))


@given(st.text("abcdefghijklmnopqrstuvwxyz-_", min_size=1, max_size=40).map(str.encode))
def test_headers_twins_are_treated_alike(name):
    assert classify(name.replace(b"_", b"-")) == classify(name.replace(b"-", b"_")) or classify(name) in (DROP, PASS)


SEGMENT = st.text(alphabet="ab*", min_size=1, max_size=5).filter(lambda s: "**" not in s) | st.just("**")


@given(st.lists(SEGMENT, min_size=1, max_size=6), st.lists(st.text(alphabet="abc", max_size=4), min_size=1, max_size=8))
def test_a_path_pattern_means_what_the_slow_reading_says(pattern, path):
    """Against all ways to cut the path, tried one by one."""
    if "".join(pattern).count("*") > LIMIT_STARS:
        return

    def slow(parts, segments):
        if not parts:
            return not segments
        if parts[0] == "**":
            return any(slow(parts[1:], segments[i:]) for i in range(len(segments) + 1))
        return bool(segments) and fnmatchcase(segments[0], parts[0]) and slow(parts[1:], segments[1:])

    text = "/" + "/".join(pattern)
    assert PathPattern.parse(text).matches("/" + "/".join(path)) == slow(pattern, path)
