"""Twin of capability.grammar and capability.grant: text to grants."""

from __future__ import annotations

import pytest

from saggar.capability.declare import from_json_schema, tool
from saggar.capability.grammar import parse, render
from saggar.capability.grant import compile_capability, grant_from_json
from saggar.core.errors import ParseError, UsageError
from saggar.core.tool import Budget
from saggar.testing.capability_desk import DECLARATIONS, PUBLIC


@tool(
    "call:http", effect="egress", roles={"url": "destination", "body": "content"}, formats={"url": "url"}, labels=PUBLIC
)
def fetch(url: str, body: str = "") -> str:
    return ""


@tool(
    "set:thing",
    effect="write",
    roles=dict.fromkeys("nfbti", "option") | {"ip": "target"},
    formats={"ip": "ip"},
    labels=PUBLIC,
)
def thing(n: int, f: float, b: bool, t: list[str], i: list[int], ip: str) -> None: ...


ALL = [*DECLARATIONS, fetch.declaration, thing.declaration]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("read:notes[2026-05-15]", 'read:notes[day="2026-05-15"]'),
        ("send:email[to=*@acme.com, max=3]", "send:email[body=*, subject=*, to=*@acme.com, max=3]"),
        ("send:email[*@acme.com]", "send:email[body=*, subject=*, to=*@acme.com]"),
        ("write:file[/workspace/**]", 'write:file[path=under("/workspace"), text=*]'),
        ("write:file[/**]", 'write:file[path=under("/"), text=*]'),
        ("write:file[/workspace/a.txt]", 'write:file[path="/workspace/a.txt", text=*]'),
        (
            "write:file[/workspace/*.txt & len<=40]".replace(" ", ""),
            "write:file[path=/workspace/*.txt&len<=40, text=*]",
        ),
        (
            "call:http[api.example.com/repos/acme/*]",
            'call:http[body=*, url=url("https://api.example.com/repos/acme/*")]',
        ),
        ("call:http[http://x.example:8080/**]", 'call:http[body=*, url=url("http://x.example:8080/**")]'),
        ("call:http[*.example.com/**]", 'call:http[body=*, url=url("https://*.example.com/**")]'),
        ("call:http[api.example.com]", 'call:http[body=*, url=url("https://api.example.com/")]'),
        (
            "pay:bill[iban={DE1, DE2}, amount=0.01..10.50, max_amount=100]",
            'pay:bill[amount=0.01..10.50, iban={"DE1", "DE2"}, max_amount=100]',
        ),
        ("pay:bill[iban=prefix(DE), amount=5]", 'pay:bill[amount="5", iban=prefix("DE")]'),
        (
            'send:email[to="a, b", subject="]", max_bytes=10]',
            'send:email[body=*, subject="]", to="a, b", max_bytes=10]',
        ),
        (
            "set:thing[n=1..3, f=0.5, b=true, t={a, b}, i=each(1..2), ip=cidr(10.0.0.0/8)]",
            'set:thing[b=true, f=0.5, i=each(1..2), ip=cidr(10.0.0.0/8), n=1..3, t=each({"a", "b"})]',
        ),
        ("read:inbox", "read:inbox"),
    ],
)
def test_compiles(text, shown):
    (grant,) = compile_capability(text, ALL)
    assert grant.to_text() == shown
    assert grant_from_json(grant.to_json()) == grant
    # what is shown compiles to the same grant, and rendering is stable
    assert compile_capability(shown, ALL) == (grant,)
    assert render(parse(text)) == render(parse(render(parse(text))))


@pytest.mark.parametrize(
    "text",
    [
        "", "send", "send:", ":email", "Send:email", "send:email[", "send:email[]", "send:email[to=]", "send:email[to=a",
        "send:email[to=a]]", "send:email[to=a] ", "send:email[to=a,,b=c]", "send:email[to=a, to=b]", "send:email[a, b]",
        "send:email[max=3, max=4]", "send:email[max=x]", "send:email[to=a*b*c]", "send:email[to=**]", "send:email[to={}]",
        "send:email[to={a,}]", 'send:email[to="a]', 'send:email[to="\\x"]', "send:email[to=prefix(]", "send:email[to=a b]",
        "send:email[to=each(each(each(each(each(each(each(each(each(each(a))))))))))]", "send:email[to=a\n]",
        "send:email[to=a\u200b]", "x" * 5000, "send:email[" + ",".join(f"a{i}=*" for i in range(100)) + "]",
    ],
)  # fmt: skip
def test_texts_that_are_no_capability(text):
    with pytest.raises(ParseError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("send:mail[to=a]", "no tool has"),
        ("send:email[bcc=a]", "no argument `bcc`"),
        ("send:email", "does not name the argument `to`"),
        ("read:notes[day=1..2]", "a range on a value of type `string`"),
        ("pay:bill[iban=DE1, amount=abc]", "not a plain decimal"),
        ("pay:bill[iban=DE1, amount=*5]", "not a plain decimal"),
        ("send:email[to=*, max_amount=3]", "no argument of role `amount`"),
        ("send:email[to=*, max=1.5]", "is a count"),
        ("write:file[/workspace/../etc/**]", "dot segment"),
        ("write:file[workspace/a]", "not an absolute path"),
        ("call:http[https://user@api.example.com/]", "user information"),
        ("call:http[https://api.example.com/a?b=1]", "not"),
        ("call:http[https://API.example.com/]", "lower-case"),
        ("set:thing[n=1.5, f=*, b=*, t=*, i=*, ip=*]", "not an integer"),
        ('set:thing[n="1", f=*, b=*, t=*, i=*, ip=*]', "a text for a value"),
        ("set:thing[n=*, f=*, b=yes, t=*, i=*, ip=*]", "neither true nor false"),
        ("set:thing[n=each(1), f=*, b=*, t=*, i=*, ip=*]", "`each` on"),
        ("set:thing[n=*, f=*, b=*, t=*, i=*, ip=cidr(10.0.0.1/8)]", "host bits"),
        ("send:email[to=\u0430cme*]", "reads as"),
        ("send:email[to={bob@acme.com, b\u043eb@acme.com}]", "mixes"),
        ('send:email[to=a, cc=each("b\u043eb@acme.com")]', "mixes"),
    ],
)
def test_capabilities_that_fit_no_tool(text, message):
    if not text.isascii():
        message = "mixes scripts|reads as"
    with pytest.raises(UsageError, match=message):
        compile_capability(text, ALL)


def test_an_argument_named_like_a_budget_is_refused():
    schema = {"type": "object", "properties": {"max": {"type": "integer"}}, "required": ["max"]}
    made = from_json_schema("t", "do:it", schema, print, effect="read", roles={"max": "option"})
    with pytest.raises(UsageError, match="budget's word"):
        compile_capability("do:it[max=3]", [made.declaration])


def test_one_text_grants_every_tool_of_its_operation_and_resource():
    @tool("read:notes", effect="read", roles={"day": "selector", "words": "content"}, labels=PUBLIC)
    def search_notes(day: str, words: str) -> list[str]:
        return []

    grants = compile_capability("read:notes[day=2026-05-15, max=4]", [*DECLARATIONS, search_notes.declaration])
    assert [g.tool for g in grants] == ["read_notes", "search_notes"]
    assert {g.budget for g in grants} == {Budget(calls=4)}
