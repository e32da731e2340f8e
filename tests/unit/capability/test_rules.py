"""Twin of capability.rule, rules, rule_check and builtin. Each rule has a trusted and an untrusted value per argument;
bench/mutate.py flips, drops and swaps every line of those modules and expects this file to notice."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from saggar.capability.builtin import Finding, Flow, bounded, findings, outward
from saggar.capability.call import prepare
from saggar.capability.constraint import All, AnyValue, EachItem, Exact, MaxLength, Prefix
from saggar.capability.declare import tool
from saggar.capability.grant import compile_capability
from saggar.capability.rule import CallView, Example, Rule, bind_rule, from_policy, holds
from saggar.capability.rule_check import covered
from saggar.capability.rules import RuleSet
from saggar.core.decision import ALLOW, ASK, DENY, Decision
from saggar.core.errors import UsageError
from saggar.core.tool import Budget, FieldLabel
from saggar.policy.load import parse as parse_policy
from saggar.testing.capability_desk import DECLARATIONS, PUBLIC, pay, read_notes, send_email, write_file

MAIL = {"to": "bob@acme.com", "subject": "s", "body": "b"}
SEND = send_email.declaration
READ = read_notes.declaration


@dataclass(frozen=True)
class L:
    integrity: str = "user"
    readers: frozenset | None = None
    sources: frozenset = frozenset()


def view(declaration=SEND, args=MAIL, **labels):
    return CallView(declaration, prepare(declaration, args, "t").args, labels)


def grant(text="send:email[to=*, cc=*]", declarations=DECLARATIONS):
    return compile_capability(text, declarations)[0]


def decide(rules, call=None, *, flow=None, held=None, declarations=DECLARATIONS, outside=()):
    loaded = RuleSet(rules, declarations, outside=outside)
    trusted = {a.name: L() for a in SEND.arguments}
    return loaded.decide(call or view(**trusted), held or grant(), flow or Flow())


def allow(**o):
    return Rule("a", ALLOW, tool=o.pop("tool", "send_email"), **o)


def ask(**o):
    return Rule("q", ASK, tool=o.pop("tool", "send_email"), **o)


def deny(**o):
    return Rule("d", DENY, tool=o.pop("tool", "send_email"), **o)


ACME = {"to": "*@acme.com", "cc": "*@acme.com"}
EVIL = {"to": "*@evil.example", "cc": "*"}


class TestPrecedence:
    @pytest.mark.parametrize(
        ("rules", "effect", "reason", "rule"),
        [
            ([], DENY, "no_rule", ""),
            ([allow(when=EVIL)], DENY, "no_rule", ""),
            ([allow()], ALLOW, "rule_allow", "a"),
            ([allow(), ask(when={"to": "bob@acme.com"})], ASK, "rule_ask", "q"),
            ([allow(), ask(when={"to": "eve@acme.com"})], ALLOW, "rule_allow", "a"),
            ([allow(), deny(when={"to": "bob@acme.com"})], DENY, "rule_deny", "d"),
            ([allow(), ask(when={"to": "*@acme.com"}), deny(when={"to": "bob@*"})], DENY, "rule_deny", "d"),
            ([ask()], ASK, "rule_ask", "q"),
            ([deny(when={"to": "bob@acme.com"})], DENY, "rule_deny", "d"),
            ([deny(when={"to": "eve@acme.com"})], DENY, "no_rule", ""),
        ],
    )
    def test_deny_beats_ask_beats_allow_beats_nothing(self, rules, effect, reason, rule):
        for order in (rules, rules[::-1]):
            d = decide(order).decision
            assert (d.effect, d.reason, d.rule, d.layer) == (effect, reason, rule, "L3")
            assert d.public == {ALLOW: "", ASK: "this call needs approval", DENY: "this call is not allowed"}[effect]

    def test_the_first_of_equals_is_named(self):
        rules = [Rule("one", ALLOW, tool="send_email", when=ACME), Rule("two", ALLOW, tool="send_email")]
        verdict = decide(rules)
        assert (verdict.decision.rule, verdict.fitting) == ("one", ("one", "two"))

    def test_rules_by_capability_and_for_every_tool(self):
        assert decide([Rule("a", ALLOW, capability="send:email")]).decision.allowed
        assert decide([Rule("a", ALLOW, tool="*")]).decision.allowed
        assert decide([Rule("a", ALLOW, capability="read:notes")]).decision.reason == "no_rule"
        assert decide([allow(), Rule("d", DENY, tool="*", roles={"recipient": "bob@*"})]).decision.rule == "d"

    def test_an_allow_by_role_allows_no_tool_without_that_role(self):
        rules = [Rule("a", ALLOW, tool="*", roles={"recipient": "*@acme.com"})]
        assert decide(rules).decision.allowed
        assert decide(rules, view(READ, {"day": "x"}), held=grant("read:notes[day=*]")).decision.reason == "no_rule"

    def test_a_tool_that_is_not_loaded_is_denied(self):
        assert decide([allow()], view(READ, {"day": "x"}), held=grant("read:notes[day=*]")).decision.reason == "no_rule"


class TestFitting:
    @pytest.mark.parametrize(
        ("to", "cc", "allowed", "denied"),
        [
            ("bob@acme.com", None, True, False),
            ("bob@acme.com", [], True, False),
            ("bob@acme.com", ["eve@acme.com"], True, False),
            ("bob@acme.com", ["eve@acme.com", "x@evil.example"], False, True),
            ("x@evil.example", None, False, True),
            ("x@evil.example", ["eve@acme.com"], False, True),
        ],
    )
    def test_every_element_for_an_allow_any_for_a_deny(self, to, cc, allowed, denied):
        call = view(args=MAIL | {"to": to, "cc": cc})
        assert bind_rule(allow(when=ACME), SEND).fits(call) is allowed
        assert bind_rule(allow(roles={"recipient": "*@acme.com"}), SEND).fits(call) is allowed
        one = bind_rule(deny(when={"to": "*@evil.example"}), SEND).fits(call)
        other = bind_rule(deny(when={"cc": "*@evil.example"}), SEND).fits(call)
        assert (one or other) is denied
        assert bind_rule(deny(unless=ACME), SEND).fits(call) is denied
        assert bind_rule(ask(unless=ACME), SEND).fits(call) is denied
        assert bind_rule(deny(roles={"recipient": "*@evil.example"}), SEND).fits(call) is denied
        assert bind_rule(ask(roles={"recipient": "*@evil.example"}), SEND).fits(call) is denied

    def test_roles_of_a_deny_are_one_or_the_other_and_all_of_the_roles(self):
        call = view(args=MAIL | {"cc": ["x@evil.example"]})
        both = {"recipient": "*@evil.example", "content": "s"}
        assert bind_rule(deny(roles=both), SEND).fits(call)
        assert not bind_rule(deny(roles=both | {"content": "other"}), SEND).fits(call)
        assert not bind_rule(deny(roles=both | {"recipient": "*@else.example"}), SEND).fits(call)

    def test_unless_needs_all_of_it(self):
        rule = bind_rule(ask(unless={"to": "*@acme.com", "subject": "s"}), SEND)
        assert not rule.fits(view())
        assert rule.fits(view(args=MAIL | {"subject": "other"}))
        both = bind_rule(ask(when={"subject": "s"}, unless={"to": "*@acme.com"}), SEND)
        assert not both.fits(view(args=MAIL | {"subject": "other", "to": "x@evil.example"}))
        assert both.fits(view(args=MAIL | {"to": "x@evil.example"}))

    def test_terms_about_the_whole_list(self):
        many = view(args=MAIL | {"cc": ["a@acme.com", "b@acme.com", "c@acme.com"]})
        assert not bind_rule(allow(when={"to": "*", "cc": "len<=2"}), SEND).fits(many)
        assert bind_rule(allow(when={"to": "*", "cc": "len<=3"}), SEND).fits(many)
        assert bind_rule(allow(when={"to": "*", "cc": "each(*@acme.com)&len<=3"}), SEND).fits(many)
        assert not bind_rule(allow(when={"to": "*", "cc": "each(a@*)"}), SEND).fits(many)
        assert not bind_rule(allow(when={"to": "*", "cc": "*@acme.com&len<=2"}), SEND).fits(many)
        assert bind_rule(allow(when={"to": "*", "cc": "*@acme.com&len<=3"}), SEND).fits(many)

    def test_holds(self):
        assert holds(Prefix("a"), None, every=True)
        assert not holds(Prefix("a"), None, every=False)
        assert holds(Prefix("a"), ["a", "b"], every=False)
        assert not holds(Prefix("a"), ["a", "b"], every=True)
        assert holds(MaxLength(2), ["x", "x"], every=False)
        assert not holds(MaxLength(1), ["x", "x"], every=False)
        assert holds(All((EachItem(AnyValue()), MaxLength(2))), ["x", "x"], every=False)
        assert holds(Exact("a"), "a", every=False)
        assert holds(All((Prefix("a"), Prefix("ab"))), ["abc", "x"], every=False)
        assert not holds(All((Prefix("a"), Prefix("ab"))), ["abc", "x"], every=True)
        assert holds(
            All((MaxLength(5), Prefix("a"))), ["a", "x"], every=False
        )  # an ask or a deny: each part for itself
        assert not holds(All((MaxLength(1), Prefix("a"))), ["a", "x"], every=False)
        assert not holds(All((MaxLength(5), Prefix("a"))), ["a"], every=True)  # one part is of the list: so are all

    @pytest.mark.parametrize("effect", [DENY, ASK])
    @pytest.mark.parametrize(
        "term", ["*@evil.com", "each(*@evil.com)", "*@evil.com&len<=9", '"a@evil.com"', "{a@evil.com}"]
    )
    @pytest.mark.parametrize(
        "value",
        [
            ["a@evil.com"],
            ["b@ok.com", "a@evil.com"],
            [["a@evil.com"]],
            [["b@ok.com"], [["b@ok.com"], ["a@evil.com"]]],
            [{"addr": "a@evil.com"}],
            [{"to": [{"deep": ["b@ok.com", "a@evil.com"]}]}],
            [{"a@evil.com": 1}],
        ],
    )
    def test_an_ask_or_a_deny_finds_it_however_deep(self, effect, term, value):
        @tool("post:things", effect="write", reversible=True, roles={"things": "content"})
        def post(things: list) -> None:
            """Post."""

        bound = bind_rule(Rule("r", effect, tool="post", when={"things": term}), post.declaration)
        assert bound.fits(view(post.declaration, {"things": value}))
        assert not bound.fits(view(post.declaration, {"things": [["b@ok.com"], {"c": "d@ok.com"}]}))
        assert not bound.fits(view(post.declaration, {"things": []}))

    @pytest.mark.parametrize("value", ["a@evil.com", {"addr": "a@evil.com"}, {"x": [["a@evil.com"]]}, [["a@evil.com"]]])
    def test_in_any_json_too(self, value):
        @tool("post:things", effect="write", reversible=True, roles={"things": "content"})
        def post(things: Any) -> None:
            """Post."""

        bound = bind_rule(Rule("r", DENY, tool="post", when={"things": "*@evil.com"}), post.declaration)
        assert bound.fits(view(post.declaration, {"things": value}))
        allowing = bind_rule(Rule("r", ALLOW, tool="post", when={"things": "*@evil.com"}), post.declaration)
        assert allowing.fits(view(post.declaration, {"things": value})) is (type(value) is not dict)

    def test_a_nested_list_is_allowed_when_all_of_it_is(self):
        @tool("post:things", effect="write", reversible=True, roles={"things": "content"})
        def post(things: list[list[str]]) -> None:
            """Post."""

        bound = bind_rule(Rule("r", ALLOW, tool="post", when={"things": "*@ok.com"}), post.declaration)
        assert bound.fits(view(post.declaration, {"things": [["a@ok.com"], ["b@ok.com"]]}))
        assert not bound.fits(view(post.declaration, {"things": [["a@ok.com"], ["b@ok.com", "a@evil.com"]]}))

    @pytest.mark.parametrize("kind", [Any, dict, list, list[list[str]], list[dict], dict[str, str]])
    @pytest.mark.parametrize("role", ["recipient", "target", "destination", "credential"])
    def test_authority_that_no_rule_can_look_into_does_not_load(self, kind, role):
        def post(to) -> None:
            """Post."""

        post.__annotations__["to"] = kind
        with pytest.raises(UsageError, match="no rule can look into"):
            tool("post:things", effect="write", roles={"to": role})(post)

    def test_predicates(self):
        assert decide([allow(predicate=lambda c: c.args["subject"] == "s")]).decision.allowed
        assert decide([allow(predicate=lambda c: False)]).decision.reason == "no_rule"
        assert (
            decide([allow(), deny(predicate=lambda c: c.labels["to"].integrity == "user")]).decision.reason
            == "rule_deny"
        )

    @pytest.mark.parametrize("effect", [ALLOW, ASK, DENY])
    def test_a_rule_that_raises_denies_with_its_own_reason(self, effect):
        def broken(_):
            raise NotImplementedError

        rules = [Rule("r", effect, tool="send_email", predicate=broken), Rule("base", ALLOW, tool="send_email")]
        d = decide(rules).decision
        assert (d.effect, d.reason, d.rule, d.detail) == (DENY, "rule_error", "r", {"error": "NotImplementedError"})


class TestLoad:
    @pytest.mark.parametrize(
        ("rules", "message"),
        [
            ([allow(tool="send_mail")], "names the tool `send_mail`, which is not there"),
            ([Rule("a", ALLOW, capability="send:mail")], "names the tool `send:mail`"),
            ([Rule("a", ALLOW)], "by `tool` or by `capability`"),
            ([Rule("a", ALLOW, tool="send_email", capability="send:email")], "by `tool` or by `capability`"),
            ([allow(), allow()], "taken"),
            ([Rule("", ALLOW, tool="send_email")], "empty"),
            ([Rule("builtin.x", ALLOW, tool="send_email")], "reserved"),
            ([Rule("a", "permit", tool="send_email")], "neither allow, ask nor deny"),
            ([allow(when={"recipient": "*"})], "looks at `recipient`, which the tool `send_email` does not have"),
            ([ask(unless={"recipient": "*"})], "looks at `recipient`"),
            ([allow(roles={"receiver": "*"})], "`receiver` is no role"),
            ([allow(roles={"amount": "..5"})], "looks at the role `amount`, which none of its tools has"),
            ([allow(when={"to": "1..5", "cc": "*"})], "a range on a value of type `string`"),
            ([allow(when={"to": "a*b*c", "cc": "*"})], "more than one star"),
            ([allow(when={"to": "a b", "cc": "*"})], "text after the value"),
            ([allow(unless={"to": "*"})], "an allow has no `unless`"),
            ([allow(accepts=("builtin.nothing",))], "accepts `builtin.nothing`"),
            ([ask(accepts=("builtin.authority",))], "accepts `builtin.authority`"),
            ([allow(when={"to": "*@acme.com"})], "does not look at its authority argument `cc`"),
            ([allow(when={"subject": "s"})], "does not look at its authority argument `to`"),
            ([Rule("a", ALLOW, tool="*", roles={"content": "len<=9"})], "does not look at its authority argument"),
            ([allow(examples=(Example(MAIL, fits=False),))], "fits its example"),
            ([allow(when=EVIL, examples=(Example(MAIL, fits=True),))], "does not fit its example"),
            ([allow(examples=(Example({"to": "x"}, fits=True),))], "is no call of"),
        ],
    )
    def test_does_not_load(self, rules, message):
        with pytest.raises(UsageError, match=message):
            RuleSet(rules, DECLARATIONS)

    @pytest.mark.parametrize(
        "rules",
        [
            [allow(when=ACME)],
            [allow(when={"to": "*@acme.com", "cc": "*"})],
            [allow(roles={"recipient": "*@acme.com"})],
            [allow(predicate=bool, when={"subject": "s"})],
            [ask(when={"subject": "s"})],
            [deny(when={"to": "x"})],
            [Rule("all", ALLOW, tool="*", roles={"recipient": "*@acme.com"})],
            [deny(roles={"recipient": "x"}), ask(roles={"recipient": "y"})],
            [deny(roles={"recipient": "x"}), ask()],
            [allow(accepts=("builtin.trifecta", "builtin.authority"))],
            [allow(examples=(Example(MAIL, fits=True),))],
        ],
    )
    def test_loads(self, rules):
        assert RuleSet(rules, DECLARATIONS).rules == tuple(rules)


class TestFromPolicy:
    TEXT = """
[[tools.rule]]
id = "r"
effect = "{effect}"
{names}
reason = "because"
when = {{ to = "*@acme.com"{cc} }}
roles = {{ content = "len<=99" }}
{more}
[[tools.rule.example]]
args = {{ to = "bob@acme.com", subject = "s", body = "b" }}
fits = true
[[tools.rule.example]]
args = {{ to = "bob@evil.example", subject = "s", body = "b" }}
fits = false
"""

    @pytest.mark.parametrize("effect", [ALLOW, ASK, DENY])
    @pytest.mark.parametrize("names", ['tool = "send_email"', 'capability = "send:email"'])
    def test_reads_as_written(self, effect, names):
        more = 'accepts = ["builtin.readers"]' if effect == ALLOW else 'human_only = true\nunless = { subject = "x" }'
        text = self.TEXT.format(effect=effect, names=names, more=more, cc=', cc = "*"' if effect == ALLOW else "")
        rule = from_policy(parse_policy(text, "f").tools.rule[0])
        fits, other = Example({"to": "bob@acme.com", "subject": "s", "body": "b"}, True), rule.examples[1]
        assert rule == Rule(
            "r", effect, "because",
            tool="send_email" if "tool" in names else "", capability="send:email" if "capability" in names else "",
            when={"to": "*@acme.com"} | ({"cc": "*"} if effect == ALLOW else {}), roles={"content": "len<=99"},
            unless={} if effect == ALLOW else {"subject": "x"}, accepts=("builtin.readers",) if effect == ALLOW else (),
            human_only=effect != ALLOW, examples=(fits, other),
        )  # fmt: skip
        assert not other.fits
        assert RuleSet([rule], DECLARATIONS).rules == (rule,)


class TestUnreachable:
    @pytest.mark.parametrize(
        ("rules", "message"),
        [
            ([deny(), allow(when=ACME)], "`a` can never decide: `d` \\(deny\\) covers it"),
            ([deny(), ask()], "contradict"),
            ([deny(when={"to": "x"}), ask(when={"to": "x"})], "contradict"),
            ([ask(), allow()], "contradict"),
            ([ask(), allow(when=ACME)], "`a` can never decide: `q`"),
            ([allow(), Rule("b", ALLOW, tool="send_email", when=ACME)], "`b` can never decide: `a`"),
            ([deny(when={"to": "*@acme.com"}), ask(when={"to": "bob@acme.com"})], "`q` can never decide"),
            ([Rule("every", DENY, tool="*"), allow()], "`a` can never decide: `every`"),
            ([deny(), ask(unless={"to": "x"})], "`q` can never decide: `d`"),
            ([allow(), Rule("b", ALLOW, tool="send_email")], "`b` can never decide: `a`"),
            (
                [
                    allow(accepts=("builtin.readers",)),
                    Rule("b", ALLOW, tool="send_email", accepts=("builtin.readers",)),
                ],
                "`b` can never decide",
            ),
            (
                [Rule("r", ALLOW, tool="*", roles={"target": "x", "amount": "..5"})],
                "no tool has all the roles that the rule `r`",
            ),
            ([deny(unless={"to": "x"}), ask(unless={"to": "x"})], "contradict"),
            ([deny(roles={"recipient": "x"}), ask(roles={"recipient": "x"})], "contradict"),
            ([deny(roles={"recipient": "*@acme.com"}), ask(when={"to": "x@acme.com"})], "`q` can never decide"),
        ],
    )
    def test_is_an_error(self, rules, message):
        with pytest.raises(UsageError, match=message):
            RuleSet(rules, DECLARATIONS)

    @pytest.mark.parametrize(
        "rules",
        [
            [Rule("b", ALLOW, tool="send_email", when=ACME), allow()],
            [deny(when={"to": "x"}), allow()],
            [deny(predicate=bool), allow()],
            [deny(unless={"to": "x"}), allow(when={"to": "x", "cc": "*"})],
            [deny(tool="pay"), Rule("b", ALLOW, tool="*")],
            [ask(), allow(accepts=("builtin.trifecta",))],
            [allow(), Rule("b", ALLOW, tool="send_email", when=ACME, accepts=("builtin.trifecta",))],
            [ask(when={"to": "bob@acme.com"}), deny(when={"to": "eve@acme.com"}), allow()],
        ],
    )
    def test_is_none(self, rules):
        RuleSet(rules, DECLARATIONS)

    def test_a_deny_covers_even_an_allow_that_accepts(self):
        with pytest.raises(UsageError):
            RuleSet([deny(), allow(accepts=("builtin.trifecta",))], DECLARATIONS)

    def test_covered_is_per_tool(self):
        a = bind_rule(Rule("x", ALLOW, tool="*"), SEND)
        b = bind_rule(Rule("y", DENY, tool="*"), READ)
        assert not covered(a, b)
        assert covered(a, bind_rule(Rule("y", DENY, tool="*"), SEND))


PAY = pay.declaration
WRITE = write_file.declaration


def found(declaration, args, text, labels=None, flow=None, declarations=DECLARATIONS):
    held = compile_capability(text, declarations)[0]
    complete = prepare(declaration, args, "t").args
    return list(findings(declaration, complete, labels or {}, held, flow or Flow()))


class TestAuthority:
    @pytest.mark.parametrize(
        ("text", "label", "reason"),
        [
            ("send:email[to=*]", None, "authority_unbounded"),
            ("send:email[to=*@acme.com]", None, ""),
            ("send:email[to=*@acme.com]", L("untrusted"), "authority_untrusted"),
            ("send:email[to={bob@acme.com, eve@acme.com}]", L("untrusted"), "authority_untrusted"),
            ("send:email[to=bob@acme.com]", L("untrusted"), ""),
            ("send:email[to=*]", L("untrusted"), "authority_untrusted"),
            ("send:email[to=*]", L("something new"), "authority_untrusted"),
            ("send:email[to=*]", L("user"), ""),
            ("send:email[to=*]", L("directory"), ""),
            ("send:email[to=*]", L("system"), ""),
        ],
    )
    def test_who_chose_the_recipient(self, text, label, reason):
        got = found(SEND, MAIL, text, {"to": label} if label else {})
        assert got == ([Finding("builtin.authority", reason, "to")] if reason else [])

    def test_an_argument_that_is_absent_is_no_authority(self):
        assert found(SEND, MAIL, "send:email[to=a@b.c, cc=*]", {"cc": L("untrusted")}) == []
        got = found(SEND, MAIL | {"cc": ["x@y.z"]}, "send:email[to=a@b.c, cc=*]", {"cc": L("untrusted")})
        assert [f.argument for f in got] == ["cc"]

    def test_an_empty_text_is_a_value(self):
        got = found(SEND, MAIL | {"to": ""}, "send:email[to=*]")
        assert [f.argument for f in got] == ["to"]

    def test_each_item_of_a_list(self):
        args = MAIL | {"cc": ["x@y.z"]}
        assert found(SEND, args, "send:email[to=a@b.c, cc=x@y.z]", {"cc": L("untrusted")}) == []
        assert found(SEND, args, "send:email[to=a@b.c, cc=each(*)]") == [
            Finding("builtin.authority", "authority_unbounded", "cc")
        ]
        assert found(SEND, args, "send:email[to=a@b.c, cc=*&len<=3]") == []

    def test_a_read_within_bounds_may_follow_untrusted_data(self):
        @tool("read:file", effect="read", roles={"path": "target"}, formats={"path": "path"}, labels=PUBLIC)
        def read_file(path: str) -> str:
            return ""

        d = [read_file.declaration]
        assert found(d[0], {"path": "/w/a"}, "read:file[/w/**]", {"path": L("untrusted")}, declarations=d) == []
        assert [
            f.reason for f in found(d[0], {"path": "/w/a"}, "read:file[*]", {"path": L("untrusted")}, declarations=d)
        ] == ["authority_untrusted"]
        got = found(WRITE, {"path": "/w/a", "text": ""}, "write:file[/w/**]", {"path": L("untrusted")})
        assert [f.reason for f in got] == ["authority_untrusted"]

    def test_bounded(self):
        assert not bounded(AnyValue())
        assert not bounded(EachItem(AnyValue()))
        assert not bounded(All((AnyValue(), AnyValue())))
        assert bounded(All((AnyValue(), Prefix("a"))))
        assert bounded(EachItem(Prefix("a")))


class TestReaders:
    @pytest.mark.parametrize(
        ("readers", "cc", "asks"),
        [
            (None, None, False),
            (frozenset({"bob@acme.com"}), None, False),
            (frozenset({"bob@acme.com"}), ["eve@acme.com"], True),
            (frozenset({"bob@acme.com", "eve@acme.com"}), ["eve@acme.com"], False),
            (frozenset({"eve@acme.com"}), None, True),
            (frozenset(), None, True),
        ],
    )
    def test_only_who_may_read_it_receives_it(self, readers, cc, asks):
        args = MAIL | {"cc": cc}
        labels = {"body": L("user", readers)}
        got = [
            f
            for f in found(SEND, args, "send:email[to=bob@acme.com, cc=*@acme.com]", labels)
            if f.rule == "builtin.readers"
        ]
        assert got == ([Finding("builtin.readers", "reader_not_permitted", "body")] if asks else [])

    def test_a_call_that_names_nobody_may_reach_everybody(self):
        @tool("post:web", effect="egress", roles={"text": "content"}, labels=PUBLIC)
        def post(text: str) -> None: ...

        d = [post.declaration]
        got = found(d[0], {"text": "x"}, "post:web", {"text": L("user", frozenset({"me"}))}, declarations=d)
        assert got == [Finding("builtin.readers", "reader_not_permitted", "text")]
        assert found(d[0], {"text": "x"}, "post:web", {"text": L("user")}, declarations=d) == []

    def test_a_recipient_is_not_its_own_content_and_a_local_write_has_no_reader(self):
        labels = {"to": L("user", frozenset())}
        assert found(SEND, MAIL, "send:email[to=bob@acme.com]", labels) == []
        labels = {"text": L("user", frozenset())}
        assert found(WRITE, {"path": "/w/a", "text": "x"}, "write:file[/w/**]", labels) == []


class TestEffects:
    def test_irreversible(self):
        @tool("delete:file", effect="destructive", roles={"path": "target"}, labels=PUBLIC)
        def delete(path: str) -> None: ...

        @tool("trash:file", effect="destructive", roles={"path": "target"}, labels=PUBLIC, reversible=True)
        def trash(path: str) -> None: ...

        d = [delete.declaration, trash.declaration]
        got = found(d[0], {"path": "a"}, "delete:file[a]", declarations=d)
        assert got == [Finding("builtin.destructive", "effect_irreversible")]
        assert found(d[1], {"path": "a"}, "trash:file[a]", declarations=d) == []
        pays = found(PAY, {"iban": "DE1", "amount": "1"}, "pay:bill[iban=DE1, amount=..5]")
        assert [f.rule for f in pays] == ["builtin.destructive"]

    @pytest.mark.parametrize(
        ("text", "asks"),
        [
            ("pay:bill[iban=DE1, amount=*]", True),
            ("pay:bill[iban=DE1, amount=1..]", True),
            ("pay:bill[iban=DE1, amount=1..&*]", True),
            ("pay:bill[iban=DE1, amount=..5]", False),
            ("pay:bill[iban=DE1, amount=3]", False),
            ("pay:bill[iban=DE1, amount={3, 4}]", False),
            ("pay:bill[iban=DE1, amount=1..&..5]", False),
            ("pay:bill[iban=DE1, amount=*, max_amount=9]", False),
        ],
    )
    def test_amounts_without_a_top(self, text, asks):
        got = found(PAY, {"iban": "DE1", "amount": "3"}, text)
        assert ("builtin.amount" in [f.rule for f in got]) is asks

    def test_a_declared_budget_is_a_top_and_a_read_needs_none(self):
        @tool("pay:bill", effect="pay", roles={"amount": "amount"}, labels=PUBLIC, budget=Budget(amount="9"))
        def capped(amount: Decimal) -> None: ...

        @tool("quote:bill", effect="read", roles={"amount": "amount"}, labels=PUBLIC)
        def quote(amount: Decimal) -> None: ...

        d = [capped.declaration, quote.declaration]
        assert [f.rule for f in found(d[0], {"amount": "3"}, "pay:bill[amount=*]", declarations=d)] == [
            "builtin.destructive"
        ]
        assert found(d[1], {"amount": "3"}, "quote:bill[amount=*]", declarations=d) == []


BOTH = Flow(private=True, untrusted=True)


class TestTrifecta:
    @pytest.mark.parametrize(
        ("flow", "rule"),
        [(Flow(), ""), (Flow(private=True), ""), (Flow(untrusted=True), ""), (BOTH, "builtin.trifecta")],
    )
    def test_without_labels_the_task_so_far_counts(self, flow, rule):
        got = found(SEND, MAIL, "send:email[to=bob@acme.com]", flow=flow)
        assert [f.rule for f in got] == ([rule] if rule else [])

    @pytest.mark.parametrize(
        ("body", "subject", "asks"),
        [
            (L(), L(), False),
            (L("untrusted", frozenset({"bob@acme.com"})), L(), True),
            (L("untrusted"), L("user", frozenset({"bob@acme.com"})), True),
            (L(), L("untrusted", frozenset({"bob@acme.com"})), True),
            (L("something new", frozenset({"bob@acme.com"})), L(), True),
            (L("untrusted"), L(), False),
            (L("user", frozenset({"bob@acme.com"})), L(), False),
        ],
    )
    def test_with_labels_the_call_itself_counts(self, body, subject, asks):
        labels = {"to": L(), "body": body, "subject": subject}
        got = found(SEND, MAIL, "send:email[to=bob@acme.com]", labels, BOTH)
        assert [f.rule for f in got] == (["builtin.trifecta"] if asks else [])

    def test_one_argument_that_nobody_tracked_is_enough(self):
        got = found(SEND, MAIL, "send:email[to=bob@acme.com]", {"subject": L(), "body": L()}, BOTH)
        assert [f.rule for f in got] == ["builtin.trifecta"]

    def test_an_untracked_argument_does_not_wash_a_tracked_one(self):
        labels = {"subject": L("untrusted", frozenset({"bob@acme.com"}))}  # body comes after it, and nobody tracked it
        got = found(SEND, MAIL, "send:email[to=bob@acme.com]", labels, Flow())
        assert [f.rule for f in got] == ["builtin.trifecta"]

    def test_arguments_that_are_absent_do_not_count(self):
        labels = {"to": L(), "body": L(), "subject": L()}
        assert found(SEND, MAIL, "send:email[to=bob@acme.com, cc=*]", labels, BOTH) == []
        got = found(SEND, MAIL | {"cc": ["a@b.c"]}, "send:email[to=bob@acme.com, cc=a@b.c]", labels, BOTH)
        assert [f.rule for f in got] == ["builtin.trifecta"]

    def test_the_rule_of_two_for_changes_that_stay_here(self):
        @tool("write:log", effect="write", roles={"text": "content"}, labels=PUBLIC)
        def log(text: str) -> None: ...

        d = [log.declaration]
        assert [f.rule for f in found(d[0], {"text": "x"}, "write:log", flow=BOTH, declarations=d)] == [
            "builtin.rule_of_two"
        ]
        assert found(d[0], {"text": "x"}, "write:log", flow=Flow(private=True), declarations=d) == []
        assert found(WRITE, {"path": "/w", "text": "x"}, "write:file[/w]", flow=BOTH) == []  # can be undone
        assert found(READ, {"day": "x"}, "read:notes[day=*]", flow=BOTH) == []  # changes nothing

    def test_outward(self):
        @tool("share:file", effect="write", roles={"who": "recipient"}, labels=PUBLIC)
        def share(who: str) -> None: ...

        @tool("read:mail", effect="read", roles={"who": "recipient"}, labels=PUBLIC)
        def mails(who: str) -> None: ...

        @tool("post:web", effect="egress", roles={"text": "content"}, labels=PUBLIC)
        def post(text: str) -> None: ...

        assert [outward(t.declaration) for t in (send_email, pay, write_file, share, mails, post)] == [
            True, True, False, True, False, True,
        ]  # fmt: skip


class TestAccepting:
    def test_an_allow_answers_for_a_built_in_rule_by_name(self):
        call = view()
        asked = decide([allow()], call, flow=BOTH, held=grant("send:email[to=bob@acme.com]"))
        assert (asked.decision.effect, asked.decision.reason, asked.asks) == (
            ASK, "lethal_trifecta", (("builtin.trifecta", "lethal_trifecta"),),
        )  # fmt: skip
        assert asked.human_only
        assert asked.decision.detail == {
            "findings": [{"rule": "builtin.trifecta", "reason": "lethal_trifecta", "argument": ""}]
        }
        accepted = decide(
            [allow(accepts=("builtin.trifecta",))], call, flow=BOTH, held=grant("send:email[to=bob@acme.com]")
        )
        assert (accepted.decision.effect, accepted.accepted) == (ALLOW, ("builtin.trifecta",))
        other = decide(
            [allow(accepts=("builtin.authority",))], call, flow=BOTH, held=grant("send:email[to=bob@acme.com]")
        )
        assert (other.decision.effect, other.accepted) == (ASK, ())

    def test_an_allow_that_does_not_fit_answers_for_nothing(self):
        rules = [allow(), Rule("b", ALLOW, tool="send_email", when=EVIL, accepts=("builtin.trifecta",))]
        rules.reverse()
        assert decide(rules, view(), flow=BOTH, held=grant("send:email[to=bob@acme.com]")).decision.effect == ASK

    def test_human_only(self):
        call = view(**{a.name: L() for a in SEND.arguments})
        assert not decide([ask()], call).human_only
        assert not decide([], call).human_only
        assert not decide([deny()], call).human_only
        assert decide([ask(human_only=True)], call).human_only
        unbounded = decide([allow()], view(), held=grant("send:email[to=*]"))
        assert (unbounded.decision.reason, unbounded.human_only) == ("authority_unbounded", False)

    def test_a_rule_and_a_finding_are_both_on_the_card(self):
        both = decide([ask(reason="looks odd")], view(), held=grant("send:email[to=*]"))
        assert both.asks == (("q", "looks odd"), ("builtin.authority", "authority_unbounded"))
        assert both.decision.rule == "q"
        assert decide([ask()]).asks == (("q", "rule_ask"),)

    def test_for_tool(self):
        loaded = RuleSet([allow(), deny(when={"to": "x"})], DECLARATIONS)
        assert [b.rule.id for b in loaded.for_tool("send_email")] == ["d", "a"]
        assert loaded.for_tool("pay") == loaded.for_tool("nothing") == ()


class TestOutside:
    class Engine:
        name = "cedar"

        def __init__(self, word):
            self.word = word

        def decide(self, call):
            if self.word == "boom":
                raise RuntimeError
            return self.word and Decision(self.word, "cedar", layer="L3", rule="cedar")

    @pytest.mark.parametrize(
        ("ours", "theirs", "effect", "reason"),
        [
            (allow(), None, ALLOW, "rule_allow"),
            (allow(), ALLOW, ALLOW, "rule_allow"),
            (allow(), ASK, ASK, "cedar"),
            (allow(), DENY, DENY, "cedar"),
            (allow(), "boom", DENY, "rule_error"),
            (ask(), ALLOW, ASK, "rule_ask"),
            (ask(), DENY, DENY, "cedar"),
            (deny(), ALLOW, DENY, "rule_deny"),
        ],
    )
    def test_only_tightens(self, ours, theirs, effect, reason):
        d = decide([ours], outside=[self.Engine(theirs)])
        assert (d.decision.effect, d.decision.reason) == (effect, reason)
        assert (("cedar", "cedar") in d.asks) is (theirs == ASK)

    def test_no_rule_of_ours_is_a_deny_whatever_it_says(self):
        assert decide([], outside=[self.Engine(ALLOW)]).decision.reason == "no_rule"


def test_camel_policies():
    """The five faults of a research system's shipped policies: four do not load here, the fifth denies by name."""

    @tool("reserve:car", effect="write", roles={"company": "target", "start": "option", "end": "option"})
    def reserve_car(company: str, start: str, end: str) -> str:
        return ""

    @tool("reserve:table", effect="write", roles={"restaurant": "target", "start": "option"})
    def reserve_table(restaurant: str, start: str) -> str:
        return ""

    @tool("delete:email", effect="destructive", roles={"email_id": "target"})
    def delete_email(email_id: str) -> str:
        return ""

    @tool("invite:event", effect="write", roles={"event_id": "target", "participants": "recipient"})
    def add_participants(event_id: str, participants: list[str]) -> str:
        return ""

    tools = [t.declaration for t in (reserve_car, reserve_table, delete_email, add_participants)]

    def load(*rules):
        return RuleSet(rules, tools)

    def trusted(name):
        return lambda call: call.labels[name].integrity == "user"

    # 1, 2: two policies swapped: each names what its tool does not have
    with pytest.raises(UsageError, match="does not have"):
        load(Rule("car", ALLOW, tool="reserve_car", when={"restaurant": "*", "start": "*"}))
    with pytest.raises(UsageError, match="does not have"):
        load(Rule("table", ALLOW, tool="reserve_table", when={"company": "*", "start": "*", "end": "*"}))
    # 3: inverted: the user's own id denied, the attacker's allowed
    with pytest.raises(UsageError, match="inverted"):
        load(
            Rule(
                "delete", DENY, tool="delete_email", when={"email_id": "prefix(mine-)"},
                examples=(Example({"email_id": "mine-1"}, fits=False), Example({"email_id": "other-1"}, fits=True)),
            )
        )  # fmt: skip
    # 4: looks at the event, not at whom it invites
    with pytest.raises(UsageError, match="authority argument `participants`"):
        load(Rule("invite", ALLOW, tool="add_participants", when={"event_id": "prefix(mine-)"}))
    # 5: raises for an untrusted value instead of refusing it
    rules = load(Rule("invite", ALLOW, tool="add_participants", predicate=trusted("participants")))
    call = CallView(tools[3], {"event_id": "e", "participants": ["x"]}, {})
    held = compile_capability("invite:event[event_id=e, participants=x]", tools)[0]
    verdict = rules.decide(call, held, Flow())
    assert (verdict.decision.effect, verdict.decision.reason) == (DENY, "rule_error")


def test_labels_are_the_declared_ones_by_default():
    assert FieldLabel() == FieldLabel("untrusted", "owner", "", private=True)
