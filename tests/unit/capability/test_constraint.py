"""Twin of capability.constraint and capability.narrower: what each constraint allows, with look-alikes beside."""

from __future__ import annotations

from decimal import Decimal

import pytest

from saggar.capability.constraint import (
    All,
    AnyValue,
    Cidr,
    EachItem,
    Exact,
    Glob,
    MaxLength,
    OneOf,
    PathUnder,
    Prefix,
    Range,
    UrlMatch,
    from_json,
)
from saggar.capability.narrower import narrower
from saggar.core.errors import ParseError

D = Decimal
URL = UrlMatch("https", "api.example.com", 443, "/repos/acme/**")


@pytest.mark.parametrize(
    ("limit", "value", "allowed"),
    [
        (Exact("a"), "a", True),
        (Exact("a"), "A", False),
        (Exact(1), 1, True),
        (Exact(1), 1.0, True),
        (Exact(1), True, False),
        (Exact(1), "1", False),
        (Exact(True), 1, False),
        (Exact(["a"]), ["a"], True),
        (Exact(["a"]), "a", False),
        (OneOf(("a", 2)), 2, True),
        (OneOf(("a", 2)), "2", False),
        (OneOf((1,)), True, False),
        (Range(D(1), D(5)), 5, True),
        (Range(D(1), D(5)), 6, False),
        (Range(D(1), D(5)), True, False),
        (Range(D(1), D(5)), float("nan"), False),
        (Range(None, D(5)), float("-inf"), False),
        (Range(D(1), D(5)), "3.5", True),
        (Range(D(1), D(5)), "3e0", False),
        (Range(D(1), D(5)), "\u0663", False),
        (Prefix("ab"), "abc", True),
        (Prefix("ab"), ["abc"], False),
        (Glob("", "@acme.com"), "bob@acme.com", True),
        (Glob("", "@acme.com"), "@acme.com", True),
        (Glob("", "@acme.com"), "a@evil.example,b@acme.com", False),
        (Glob("", "@acme.com"), "a@evil.example@acme.com", False),
        (Glob("", "@acme.com"), "bob@acme.com.evil.example", False),
        (Glob("", "@acme.com"), "bob <x@acme.com", False),
        (Glob("", "@acme.com"), "bob\n@acme.com", False),
        (Glob("r/", ".csv"), "r/a/b.csv", False),
        (Glob("ab", "bc"), "abc", False),
        (Cidr("10.0.0.0/8"), "10.1.2.3", True),
        (Cidr("10.0.0.0/8"), "010.1.2.3", False),
        (Cidr("10.0.0.0/8"), "::ffff:10.1.2.3", False),
        (Cidr("10.0.0.0/8"), "11.0.0.1", False),
        (Cidr("10.0.0.0/8"), 167772161, False),
        (URL, "https://api.example.com/repos/acme/x", True),
        (URL, "https://api.example.com/repos/acme", True),
        (URL, "https://api.example.com/repos/acmeevil", False),
        (URL, "https://api.example.com/repos/acme/../../x", False),
        (URL, "https://api.example.com/repos/acme/%2e%2e/x", False),
        (URL, "https://api.example.com/repos/acme/..%2fx", False),
        (URL, "https://api.example.com@evil.example/repos/acme/x", False),
        (URL, "https://api.example.com.evil.example/repos/acme/x", False),
        (URL, "https://API.example.com/repos/acme/x", False),
        (URL, "https://api.example.com:443/repos/acme/x", False),
        (URL, "https://api.example.com:8443/repos/acme/x", False),
        (URL, "http://api.example.com/repos/acme/x", False),
        (URL, "https://api.example.com\\@evil.example/repos/acme/x", False),
        (URL, "https://api.example.com./repos/acme/x", False),
        (UrlMatch("https", "*.example.com", 443, "/**"), "https://a.example.com/", True),
        (UrlMatch("https", "*.example.com", 443, "/**"), "https://a.b.example.com/", False),
        (UrlMatch("https", "*.example.com", 443, "/**"), "https://example.com/", False),
        (UrlMatch("https", "a.example.com", 443, "/x"), "https://a.example.com/x?q=1", False),
        (UrlMatch("https", "a.example.com", 443, "/x/*"), "https://a.example.com/x/y", True),
        (UrlMatch("https", "a.example.com", 443, "/x/*"), "https://a.example.com/x/y/z", False),
        (UrlMatch("https", "a.example.com", 443, "/x/*"), "https://a.example.com/x/", False),
        (PathUnder("/workspace"), "/workspace/a", True),
        (PathUnder("/workspace"), "/workspace", True),
        (PathUnder("/workspace"), "/workspace2/a", False),
        (PathUnder("/workspace"), "/workspace/../etc", False),
        (PathUnder("/workspace"), "/workspace//a", False),
        (PathUnder("/workspace"), "/workspace/./a", False),
        (PathUnder("/workspace"), "workspace/a", False),
        (PathUnder("/workspace"), "/workspace/a\0b", False),
        (PathUnder("/"), "/etc", True),
        (MaxLength(3), "abc", True),
        (MaxLength(3), "é€", False),
        (MaxLength(1), [1, 2], False),
        (MaxLength(1), 1, False),
        (EachItem(Prefix("a")), ["ab", "ac"], True),
        (EachItem(Prefix("a")), ["ab", "bc"], False),
        (EachItem(Prefix("a")), "ab", False),
        (EachItem(Prefix("a")), [], True),
        (All((Prefix("a"), MaxLength(2))), "ab", True),
        (All((Prefix("a"), MaxLength(2))), "abc", False),
        (AnyValue(), None, True),
    ],
)
def test_allows(limit, value, allowed):
    assert limit.allows(value) is allowed
    assert from_json(limit.to_json()) == limit


def test_one_and_true_are_two_constraints():
    assert Exact(1) != Exact(True)
    assert OneOf((1,)) != OneOf((True,))


@pytest.mark.parametrize(
    ("child", "parent", "yes"),
    [
        (Exact("a@acme.com"), Glob("", "@acme.com"), True),
        (Glob("b", "@acme.com"), Glob("", "@acme.com"), True),
        (Glob("b@", "@acme.com"), Glob("", "@acme.com"), False),
        (Glob("", "acme.com"), Glob("", "@acme.com"), False),
        (Glob("", ".b@acme.com"), Glob("", "@acme.com"), True),
        (Prefix("ab"), Glob("a", ""), False),
        (Glob("ab", ""), Prefix("a"), True),
        (Range(D(2), D(3)), Range(D(1), D(3)), True),
        (Range(D(2), None), Range(D(1), D(3)), False),
        (Range(None, D(3)), Range(D(1), D(3)), False),
        (OneOf(("a", "b")), OneOf(("a", "b", "c")), True),
        (OneOf(("a", "d")), OneOf(("a", "b", "c")), False),
        (Cidr("10.1.0.0/16"), Cidr("10.0.0.0/8"), True),
        (Cidr("10.0.0.0/8"), Cidr("10.1.0.0/16"), False),
        (Cidr("2001:db8::/32"), Cidr("10.0.0.0/8"), False),
        (PathUnder("/a/b"), PathUnder("/a"), True),
        (PathUnder("/ab"), PathUnder("/a"), False),
        (PathUnder("/ab"), Prefix("/a"), True),
        (UrlMatch("https", "a.b.c", 443, "/x/y"), UrlMatch("https", "*.b.c", 443, "/x/*"), True),
        (UrlMatch("https", "*.b.c", 443, "/x"), UrlMatch("https", "a.b.c", 443, "/x"), False),
        (UrlMatch("https", "a.b.c", 443, "/x/**"), UrlMatch("https", "a.b.c", 443, "/x/*"), False),
        (UrlMatch("https", "a.b.c", 443, "/x/*"), UrlMatch("https", "a.b.c", 443, "/x/**"), True),
        (UrlMatch("http", "a.b.c", 80, "/x"), UrlMatch("https", "a.b.c", 443, "/x"), False),
        (UrlMatch("https", "a.b.c", 443, "/xy"), UrlMatch("https", "a.b.c", 443, "/x/**"), False),
        (MaxLength(2), MaxLength(3), True),
        (MaxLength(4), MaxLength(3), False),
        (EachItem(Exact("a")), EachItem(Prefix("a")), True),
        (EachItem(Exact("a")), Prefix("a"), False),
        (All((Prefix("ab"), MaxLength(3))), Prefix("a"), True),
        (Prefix("ab"), All((Prefix("a"), MaxLength(9))), False),
        (AnyValue(), Prefix("a"), False),
        (Exact(["a"]), AnyValue(), True),
    ],
)
def test_narrower(child, parent, yes):
    assert narrower(child, parent) is yes
    assert narrower(child, child)
    assert narrower(parent, parent)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"type": "regex", "value": "a.*"}, "constraint_unknown"),
        ({"type": "exact"}, "constraint_form"),
        ({"type": "exact", "value": 1, "also": 2}, "constraint_form"),
        ({"type": ["exact"], "value": 1}, "constraint_unknown"),
        ([], "constraint_form"),
        ({"type": "one_of", "values": []}, "constraint_form"),
        ({"type": "range"}, "constraint_form"),
        ({"type": "range", "min": "5", "max": "1"}, "constraint_form"),
        ({"type": "range", "min": 5}, "constraint_form"),
        ({"type": "range", "min": "1e3"}, "number_form"),
        ({"type": "glob", "value": "a*b*c"}, "constraint_form"),
        ({"type": "glob", "value": "abc"}, "constraint_form"),
        ({"type": "cidr", "value": "10.0.0.1/8"}, "cidr_form"),
        ({"type": "path_under", "value": "a/b"}, "path_relative"),
        ({"type": "path_under", "value": "/a/../b"}, "path_traversal"),
        ({"type": "url", "scheme": "https", "host": "a", "port": True, "path": "/"}, "constraint_form"),
        ({"type": "url", "scheme": "https", "host": "A", "port": 443, "path": "/"}, "host_form"),
        ({"type": "max_length", "value": True}, "constraint_form"),
        ({"type": "max_length", "value": -1}, "constraint_form"),
        ({"type": "all", "constraints": [{"type": "any"}]}, "constraint_form"),
    ],
)
def test_from_json_refuses(data, reason):
    with pytest.raises(ParseError) as caught:
        from_json(data)
    assert caught.value.reason == reason


def test_from_json_refuses_deep_nesting():
    data = {"type": "any"}
    for _ in range(20):
        data = {"type": "each", "constraint": data}
    with pytest.raises(ParseError) as caught:
        from_json(data)
    assert caught.value.reason == "depth"
