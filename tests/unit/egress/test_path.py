from __future__ import annotations

import pytest

from saggar.core.errors import ParseError
from saggar.egress.path import canonical, canonical_path, split_absolute

SAME = [
    b"/",
    b"/a",
    b"/a/",
    b"/v1/chat/completions",
    b"/.well-known/x",
    b"/a..b/...",
    b"/@scope/name",
    b"/~user/a=b,c&d(e)'f!$*+",
    b"/a%20b",
    b"/caf%C3%A9",
]

CHANGED = [
    (b"/%41%62c", b"/Abc"),
    (b"/a%c3%a9", b"/a%C3%A9"),
    (b"/%7euser", b"/~user"),
    (b"/a%2d%5f", b"/a-_"),
    (b"/a%3a", b"/a%3A"),
    (b"/%e2%82%ac/%F0%9f%98%80", b"/%E2%82%AC/%F0%9F%98%80"),
    (b"/%E4%BD%A0%EF%BC%9F", b"/%E4%BD%A0%EF%BC%9F"),
    (b"/a?q=caf%e9", b"/a?q=caf%E9"),
    (b"/a/..b/b../...", b"/a/..b/b../..."),
    (b"/%61/%2D", b"/a/-"),
    (b"/a?x=%7E&y=%c3", b"/a?x=~&y=%C3"),
    (b"/a?", b"/a?"),
    (b"/./Packages", b"/Packages"),
    (b"/a/./b/.", b"/a/b/"),
    (b"/.", b"/"),
    (b"/a?q=a|b", b"/a?q=a%7Cb"),
    (b'/a?f[]=1&j={"a":1}', b"/a?f%5B%5D=1&j=%7B%22a%22:1%7D"),
]

REFUSED = [
    (b"", "path_not_absolute"),
    (b"*", "path_not_absolute"),
    (b"a/b", "path_not_absolute"),
    (b"http://api.allowed.test/x", "path_not_absolute"),
    (b"//evil.test/x", "path_empty_segment"),
    (b"/a//b", "path_empty_segment"),
    (b"//", "path_empty_segment"),
    (b"/..", "path_dot_segment"),
    (b"/a/../b", "path_dot_segment"),
    (b"/a/..", "path_dot_segment"),
    (b"/%2e%2e/", "path_dot_segment"),
    (b"/a/%2E./b", "path_dot_segment"),
    (b"/a%2eb", "path_dot_segment"),
    (b"/a;x/..", "path_parameters"),
    (b"/a;jsessionid=1", "path_parameters"),
    (b"/a%3bx", "path_parameters"),
    (b"/a%2fb", "path_encoded_slash"),
    (b"/a%2Fb", "path_encoded_slash"),
    (b"/%252e%252e/", "path_double_encoding"),
    (b"/a%25", "path_double_encoding"),
    (b"/a%2500", "path_double_encoding"),
    (b"/a\\b", "path_backslash"),
    (b"/a%5cb", "path_backslash"),
    (b"/a#b", "path_fragment"),
    (b"/a%23b", "path_fragment"),
    (b"/a?b#c", "path_fragment"),
    (b"/a%3Fb", "path_encoded_query"),
    (b"/caf\xc3\xa9", "path_not_ascii"),
    (b"/a\xff", "path_not_ascii"),
    (b"/a b", "path_control"),
    (b"/a\tb", "path_control"),
    (b"/a\0b", "path_control"),
    (b"/a%00b", "path_control"),
    (b"/a%0d%0aX:y", "path_control"),
    (b"/a%7f", "path_control"),
    (b"/a%", "path_bad_escape"),
    (b"/a%4", "path_bad_escape"),
    (b"/a%zz", "path_bad_escape"),
    (b"/a%u002e", "path_bad_escape"),
    (b"/a{b}", "path_bad_byte"),
    (b"/a|b", "path_bad_byte"),
    (b'/a"b', "path_bad_byte"),
    # overlong and broken UTF-8: `/`, `.`, `\\` and NUL of decoders that forgive
    (b"/a/%c0%ae%c0%ae/b", "path_not_utf8"),
    (b"/a/%C0%AE./b", "path_not_utf8"),
    (b"/a%c0%afb", "path_not_utf8"),
    (b"/a%c1%9cb", "path_not_utf8"),
    (b"/a%e0%80%afb", "path_not_utf8"),
    (b"/a%f0%80%80%afb", "path_not_utf8"),
    (b"/a%f8%80%80%80%afb", "path_not_utf8"),
    (b"/a%c0%80", "path_not_utf8"),
    (b"/a%ed%a0%80", "path_not_utf8"),
    (b"/a%ff", "path_not_utf8"),
    (b"/caf%e9", "path_not_utf8"),
    (b"/a%c3", "path_not_utf8"),
    (b"/a%c3%28", "path_not_utf8"),
    # characters that fold to a separator or a dot segment
    (b"/a/%ef%bc%8e%ef%bc%8e/b", "path_lookalike"),
    (b"/a/.%ef%bc%8e/b", "path_lookalike"),
    (b"/a/%e2%80%a5/b", "path_lookalike"),
    (b"/a%ef%bc%8fb", "path_lookalike"),
    (b"/a%ef%bc%bcb", "path_lookalike"),
    (b"/a%e2%84%85b", "path_lookalike"),
    # mixtures
    (b"/a/%2e%2e%2fb", "path_dot_segment"),
    (b"/a/..%2fb", "path_encoded_slash"),
    (b"/a/..%5cb", "path_backslash"),
    (b"/a/%2e%2E;x/b", "path_parameters"),
    (b"/a/..;/b", "path_parameters"),
    (b"/a/./../b", "path_dot_segment"),
    (b"/./..", "path_dot_segment"),
    (b"/.//b", "path_empty_segment"),
    (b"/a/.//b", "path_empty_segment"),
    (b"/a///", "path_empty_segment"),
    (b"/%5c%5cevil.test/x", "path_backslash"),
    (b"/a%252fb", "path_double_encoding"),
    (b"/a%25%32%66b", "path_double_encoding"),
    (b"/a%09b", "path_control"),
    (b"/a%1fb", "path_control"),
    (b"/a%%32fb", "path_bad_escape"),
    (b"/a?b=%c0%80", "query_not_utf8"),
    (b"/a?%c0%e1dmin=1", "query_not_utf8"),
    (b"/a?b=%e0%9f%bf", "query_not_utf8"),
    (b"/a?b=%zz", "query_bad_escape"),
    (b"/a?b=%", "query_bad_escape"),
    (b"/a?b=%00", "query_control"),
    (b"/a?b=%0d%0a", "query_control"),
    (b"/a?b c", "query_bad_byte"),
    (b"/a?b\\c", "query_bad_byte"),
    (b"/a?b\xc3", "query_bad_byte"),
    (b"/" + b"a" * 17000, "target_too_long"),
]


@pytest.mark.parametrize("target", SAME)
def test_canonical_form_is_kept(target):
    assert canonical(target).raw == target


@pytest.mark.parametrize(("target", "raw"), CHANGED)
def test_other_spelling_becomes_canonical(target, raw):
    assert canonical(target).raw == raw


@pytest.mark.parametrize(("target", "reason"), REFUSED)
def test_ambiguous_target_is_refused(target, reason):
    with pytest.raises(ParseError) as e:
        canonical(target)
    assert e.value.reason == reason


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (b"/a%2f..%2fb", "path_dot_segment"),
        (b"/a%2f%2fb", "path_empty_segment"),
        (b"/..%2fb", "path_dot_segment"),
        (b"/%2fb", "path_empty_segment"),
    ],
)
def test_kept_slash_is_still_judged_as_a_separator(path, reason):
    with pytest.raises(ParseError) as e:
        canonical_path(path, keep_slash=True)
    assert e.value.reason == reason


def test_kept_slash_stands_as_data():
    assert canonical_path(b"/@scope%2fname", keep_slash=True) == b"/@scope%2Fname"


def test_query_pairs_see_behind_semicolons_and_plus():
    assert canonical(b"/a?x=1;key=2&y=a+b%20c&&z").pairs == (("x", "1"), ("key", "2"), ("y", "a b c"), ("z", ""))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/x", None),
        (b"http://a.test/x?y", (b"http", b"a.test", b"/x?y")),
        (b"HTTP://a.test", (b"http", b"a.test", b"/")),
        (b"https://a.test?q=1", (b"https", b"a.test", b"/?q=1")),
        (b"http://u@a.test:80/", (b"http", b"u@a.test:80", b"/")),
        (b"http:///x", (b"http", b"", b"/x")),
        (b"a.test:443", None),
    ],
)
def test_absolute_form_is_split(target, expected):
    assert split_absolute(target) == expected
