"""Twin of capability.gateway: the order of the steps, each refusal's reason, and what the log says."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import pytest

from saggar.capability.declare import tool
from saggar.capability.desk_host import Purse
from saggar.capability.mint import attenuate_local
from saggar.capability.past import past_of
from saggar.capability.rule import Rule
from saggar.core.approval import Answer
from saggar.core.decision import ASK, DENY, Decision
from saggar.core.tool import Budget, FieldLabel
from saggar.testing.capability import MemoryLog, ScriptedApprover, approve
from saggar.testing.capability_desk import PUBLIC, TOOLS, make_desk

MAIL = {"to": "bob@acme.com", "subject": "s", "body": "b"}
TO_ACME = "send:email[to=*@acme.com]"


def reasons(log):
    return [
        (r["kind"].split(".", 1)[1], r["reason"])
        for r in log.records
        if r["kind"] not in ("capability.granted", "capability.tools")
    ]


def test_a_call_is_recorded_before_and_after():
    desk, log, _ = make_desk(TO_ACME)
    out = desk.gateway.call(desk.gateway.token([TO_ACME]), "send_email", MAIL)
    assert (out.status, out.value, out.public) == ("done", "sent to bob@acme.com", "")
    assert reasons(log) == [("intent", "rule_allow"), ("outcome", "done")]
    intent, outcome = log.records[2]["detail"], log.records[3]["detail"]
    assert intent["call_id"] == outcome["call_id"] == out.call_id
    assert intent["args"]["to"] == "bob@acme.com"
    assert set(intent["args"]["body"]) == {"sha256", "bytes"}  # content is recorded by digest


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        ("send_email", MAIL | {"to": "bob@evil.example"}, "constraint"),
        ("send_email", MAIL | {"bcc": "x@acme.com"}, "argument_unknown"),
        ("send_email", {"to": "bob@acme.com"}, "argument_missing"),
        ("send_email", MAIL | {"cc": ["a@acme.com"]}, "argument_not_granted"),
        ("send_email", MAIL | {"to": ["bob@acme.com"]}, "type_confusion"),
        ("send_email", MAIL | {"to": None}, "type_confusion"),
        ("send_email", MAIL | {"body": 5}, "type_confusion"),
        ("send_email", MAIL | {"body": "\ud800"}, "surrogate"),
        ("send_email", MAIL | {"to": "b\u043eb@acme.com"}, "unicode_lookalike"),
        ("send_email", MAIL | {"to": "bob@acme.com\u200b"}, "unicode_invisible"),
        ("send_email", MAIL | {"to": "\u202emoc.emca@bob"}, "unicode_invisible"),
        ("send_email", MAIL | {"to": "bob@acme\uff0ecom"}, "unicode_compatibility"),
        ("send_email", MAIL | {"to": "be\u0301@acme.com"}, "unicode_not_nfc"),
        ("send_email", MAIL | {"to": "bob\u0661@acme.com"}, "unicode_digit"),
        ("send_email", MAIL | {"to": "bob\u00a0@acme.com"}, "unicode_invisible"),
        ("send_email", MAIL | {"to": "bob@acme.com\n"}, "unicode_control"),
        ("send_email", [], "type_confusion"),
        ("read_notes", {"day": "2026-05-15"}, "tool_not_granted"),
        ("no_such_tool", {}, "tool_unknown"),
    ],
)
def test_refused_with_its_own_reason(name, args, reason):
    desk, log, _ = make_desk(TO_ACME)
    out = desk.gateway.call(desk.gateway.token([TO_ACME]), name, args)
    assert (out.status, out.decision.reason, out.public) == ("denied", reason, "this call is not allowed")
    assert reasons(log) == [("decision", reason)]


@pytest.mark.parametrize(
    ("amount", "reason"),
    [
        ("10.00", ""),
        ("10.01", "constraint"),
        ("1e1", "number_form"),
        ("010", "number_form"),
        ("+1", "number_form"),
        ("\u0661", "number_form"),
        ("0x1", "number_form"),
        ("1_0", "number_form"),
        ("-5", "amount_negative"),
        (10, "type_confusion"),
        (True, "type_confusion"),
        (float("nan"), "type_confusion"),
    ],
)
def test_amounts(amount, reason):
    grant = "pay:bill[iban=DE1, amount=..10, max_amount=25]"
    rule = Rule("pay", "allow", tool="pay", accepts=("builtin.destructive",))
    desk, _, _ = make_desk(grant, rules=[rule])
    out = desk.gateway.call(desk.gateway.token([grant]), "pay", {"iban": "DE1", "amount": amount})
    assert out.decision.reason == (reason or "rule_allow")


def test_str_subclasses_are_not_strings():
    class Sly(str):
        __slots__ = ()

        def startswith(self, *_):
            return True

        def endswith(self, *_):
            return True

    desk, _, _ = make_desk(TO_ACME)
    out = desk.gateway.call(desk.gateway.token([TO_ACME]), "send_email", MAIL | {"to": Sly("a@evil.example")})
    assert out.decision.reason == "type_confusion"


class TestBudgets:
    def test_calls_of_a_token_and_its_children_are_one_account(self):
        grant = "send:email[to=*@acme.com, max=2]"
        desk, _, _ = make_desk(grant)
        parent = desk.gateway.token([grant])
        narrow = desk.gateway.grants(["send:email[to=bob@acme.com, max=2]"])
        children = [attenuate_local(parent, narrow, random=os.urandom) for _ in range(3)]
        got = [desk.gateway.call(t, "send_email", MAIL).decision.reason for t in children]
        assert got == ["rule_allow", "rule_allow", "budget_calls"]

    def test_minting_afresh_does_not_fill_a_budget_up(self):
        grant = "send:email[to=*@acme.com, max=2]"
        desk, _, clock = make_desk(grant)
        purse = Purse(desk.gateway, [grant], clock=clock)
        got = []
        for _ in range(4):
            got.append(desk.gateway.call(purse.token(), "send_email", MAIL).decision.reason)
            clock.advance(45)
        assert got == ["rule_allow", "rule_allow", "budget_calls", "budget_calls"]

    def test_a_task_that_is_taken_up_again_has_its_past(self):
        grant = "send:email[to=*@acme.com, max=2]"
        caps = ("read:inbox", grant)
        desk, log, _ = make_desk(*caps)
        token = desk.gateway.token(caps)
        desk.gateway.call(token, "send_email", MAIL, call_id="step-1")
        desk.gateway.call(token, "read_inbox", {})
        again, _, _ = make_desk(*caps, audit=log)
        again.gateway.restore(past_of(log.records))
        token = again.gateway.token(caps)
        assert again.gateway.call(token, "send_email", MAIL, call_id="step-1").decision.reason == "replayed"
        assert again.gateway.flow == desk.gateway.flow
        labels = {name: FakeLabel() for name in MAIL}
        got = [again.gateway.call(token, "send_email", MAIL, labels=labels).decision.reason for _ in range(2)]
        assert got == ["rule_allow", "budget_calls"]
        assert len(log.of("capability.tools")) == 1
        assert past_of(log.records).open_calls == ()

    def test_amounts_add_up(self):
        grant = "pay:bill[iban=DE1, amount=..10, max_amount=25]"
        desk, _, _ = make_desk(grant, rules=[Rule("p", "allow", tool="pay", accepts=("builtin.destructive",))])
        token = desk.gateway.token([grant])
        got = [
            desk.gateway.call(token, "pay", {"iban": "DE1", "amount": a}).decision.reason
            for a in ("10", "10", "6", "5")
        ]
        assert got == ["rule_allow", "rule_allow", "budget_amount", "rule_allow"]

    def test_a_failed_call_has_used_its_budget(self):
        @tool("do:it", effect="write", roles={}, labels=PUBLIC)
        def boom() -> None:
            raise ValueError("secret")

        desk, log, _ = make_desk("do:it[max=1]", tools=[boom])
        token = desk.gateway.token(["do:it[max=1]"])
        first, second = (desk.gateway.call(token, "boom", {}) for _ in range(2))
        assert (first.status, first.decision.reason, first.public) == ("failed", "tool_raised", "the tool failed")
        assert second.decision.reason == "budget_calls"
        assert "secret" not in str(log.records) + str(first)

    def test_a_result_that_passes_the_byte_budget_is_withheld(self):
        desk, _, _ = make_desk("read:notes[day=*]", budget=Budget(bytes=30))
        token = desk.gateway.token(["read:notes[day=*]"])
        out = desk.gateway.call(token, "read_notes", {"day": "2026-05-15"})
        assert (out.status, out.decision.reason, out.value) == ("failed", "budget_bytes", None)

    def test_two_threads_do_not_share_the_last_call(self):
        gate = threading.Barrier(8)
        ran = []

        @tool("do:it", effect="write", roles={}, labels=PUBLIC)
        def slow() -> None:
            ran.append(1)

        desk, _, _ = make_desk("do:it[max=3]", tools=[slow])
        token = desk.gateway.token(["do:it[max=3]"])

        def hammer():
            gate.wait()
            for _ in range(20):
                desk.gateway.call(token, "slow", {})

        threads = [threading.Thread(target=hammer) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(ran) == 3


def test_a_one_shot_id_runs_once():
    desk, _log, _ = make_desk(TO_ACME)
    token = desk.gateway.token([TO_ACME])
    first = desk.gateway.call(token, "send_email", MAIL, call_id="step-1")
    again = desk.gateway.call(token, "send_email", MAIL | {"body": "other"}, call_id="step-1")
    assert (first.status, again.status, again.decision.reason) == ("done", "denied", "replayed")


def test_a_signed_token_needs_its_proof_in_this_process_too():
    from saggar.capability.keys import PrivateKey

    desk, _, _ = make_desk(TO_ACME)
    token = desk.issuer.mint(desk.gateway.grants([TO_ACME]), holder=PrivateKey(b"w" * 32).public)
    assert desk.gateway.call(token, "send_email", MAIL).decision.reason == "proof_missing"


def test_an_engine_that_fails_denies_with_its_own_reason():
    desk, log, _ = make_desk(TO_ACME)
    token = desk.gateway.token([TO_ACME])
    desk.gateway._ruled = lambda *_: 1 / 0
    for out in (
        desk.gateway.call(token, "send_email", MAIL),
        asyncio.run(desk.gateway.acall(token, "send_email", MAIL)),
    ):
        assert (out.status, out.decision.reason, out.decision.detail) == (
            "denied",
            "engine_error",
            {"error": "ZeroDivisionError"},
        )
    assert desk.gateway.explain(token, "send_email", MAIL).reason == "engine_error"
    assert desk.gateway.call(token, ["send_email"], MAIL).decision.reason == "engine_error"


def test_a_caller_that_only_knocks_does_not_fill_the_log(monkeypatch):
    from saggar.capability import gateway

    monkeypatch.setattr(gateway, "MAX_REFUSALS", 5)
    desk, log, _ = make_desk(TO_ACME)
    token = desk.gateway.token([TO_ACME])
    for _ in range(20):
        assert desk.gateway.call(token, "pay", {"iban": "x", "amount": "1"}).status == "denied"
    assert (len(log.of("capability.decision")), len(log.of("capability.flood"))) == (5, 1)


def test_a_list_that_changes_while_a_human_thinks_changes_nothing():
    grants = ("read:inbox", "send:email[to=*@acme.com, cc=*@acme.com]")
    sent = []

    @tool("send:email", effect="egress", roles={"to": "recipient", "cc": "recipient"}, labels=PUBLIC)
    def send(to: str, cc: list[str]) -> None:
        sent.append(cc)

    cc = ["eve@acme.com"]
    slow = ScriptedApprover(lambda q: (cc.append("x@evil.example"), approve(q))[1])
    desk, _, _ = make_desk(*grants, approver=slow, tools=[send, *TOOLS[2:3]])
    token = desk.gateway.token(grants)
    desk.gateway.call(token, "read_inbox", {})
    assert desk.gateway.call(token, "send", {"to": "bob@acme.com", "cc": cc}).done
    assert sent == [["eve@acme.com"]]


def test_a_body_that_changes_its_lists_changes_no_other_call():
    got = []

    @tool("write:tags", effect="write", reversible=True, roles={"tags": "content", "more": "content"})
    def put(tags: list[str], more: list[str] = ["a"]) -> int:  # a mutable default is what is tried
        got.append((list(tags), list(more)))
        tags.append("x")
        more.append("x")
        return len(more)

    desk, _, _ = make_desk("write:tags", tools=[put])
    token, mine = desk.gateway.token(["write:tags"]), ["t"]
    judged = []
    commit = desk.gateway._commit
    desk.gateway._commit = lambda j: (judged.append(j), commit(j))[1]
    for _ in range(2):
        assert desk.gateway.call(token, "put", {"tags": mine}).done
    assert got == [(["t"], ["a"])] * 2
    assert mine == ["t"]
    assert put.declaration.argument("more").default == ["a"]
    assert [j.call.args for j in judged] == [{"tags": ["t"], "more": ["a"]}] * 2


def test_an_account_with_a_colon_is_taken_up_as_itself():
    grant = "send:email[to=*@acme.com, max=1]"
    desk, log, _ = make_desk(grant)
    ids = iter([b"a:b", b"c"])  # a holder chooses its token's id
    sly = attenuate_local(desk.gateway.token([grant]), desk.gateway.grants([grant]), random=lambda n: Named(next(ids)))
    assert desk.gateway.call(sly, "send_email", MAIL).done
    used = past_of(log.records).used
    assert used["token", "a:b", "0"][0] == 1
    again, _, _ = make_desk(grant)
    again.gateway.restore(past_of(log.records))
    assert again.gateway._ledger.used(("token", "a:b", "0"))[0] == 1


class Named(bytes):
    def hex(self):
        return self.decode()


class Mute:
    def __str__(self):
        raise KeyError


@pytest.mark.parametrize("value", [10**5000, [-(10**5000)], Mute()], ids=["int", "list", "str"])
def test_a_result_without_a_text_is_as_if_the_body_had_raised(value):
    @tool("read:any", effect="read")
    def give() -> Any:
        return value

    desk, log, _ = make_desk("read:any", tools=[give])
    out = desk.gateway.call(desk.gateway.token(["read:any"]), "give", {})
    assert (out.status, out.value, out.public) == ("failed", None, "the tool failed")
    assert reasons(log)[-1] == ("outcome", "tool_raised")


def test_without_a_log_nothing_happens():
    ran = []

    @tool("do:it", effect="write", roles={}, labels=PUBLIC)
    def act() -> None:
        ran.append(1)

    log = MemoryLog()
    desk, _, _ = make_desk("do:it", tools=[act], audit=log)
    token = desk.gateway.token(["do:it"])
    log.broken = True
    out = desk.gateway.call(token, "act", {})
    assert (out.status, out.decision.reason, ran) == ("denied", "audit_unavailable", [])


def test_a_crash_between_intent_and_outcome_is_visible():
    class Crash(BaseException):
        pass

    @tool("do:it", effect="write", roles={}, labels=PUBLIC)
    def die() -> None:
        raise Crash

    desk, log, _ = make_desk("do:it", tools=[die])
    with pytest.raises(Crash):
        desk.gateway.call(desk.gateway.token(["do:it"]), "die", {}, call_id="c9")
    assert [r["detail"]["call_id"] for r in log.of("capability.intent")] == ["c9"]
    assert log.of("capability.outcome") == []
    assert past_of(log.records).open_calls == ("c9",)


def test_a_changed_declaration_ends_what_was_granted():
    @tool("read:notes", effect="read", roles={"day": "selector"}, labels=PUBLIC, description="another text")
    def read_notes(day: str) -> list[str]:
        return []

    old, _, clock = make_desk("read:notes[day=*]")
    token = old.gateway.token(["read:notes[day=*]"])
    new, _, _ = make_desk("read:notes[day=*]", tools=[read_notes], clock=clock)
    new.gateway._verifier = old.verifier
    assert new.gateway.call(token, "read_notes", {"day": "x"}).decision.reason == "declaration_changed"


class TestApproval:
    INBOX = ("read:inbox", TO_ACME)

    def tainted(self, **options):
        desk, log, clock = make_desk(*self.INBOX, **options)
        token = desk.gateway.token(self.INBOX)
        assert desk.gateway.call(token, "read_inbox", {}).done
        return desk, log, clock, token

    def test_after_reading_private_untrusted_mail_sending_asks(self):
        approver = ScriptedApprover(approve)
        desk, log, _, token = self.tainted(approver=approver)
        out = desk.gateway.call(token, "send_email", MAIL)
        assert (out.status, out.decision.reason) == ("done", "approved")
        question = approver.questions[0]
        assert (question.rule, question.reasons) == ("builtin.trifecta", ("lethal_trifecta",))
        assert question.human_only
        assert {x.name: x.raw for x in question.lines}["to"] == '"bob@acme.com"'
        kinds = [r["kind"] for r in log.records][-4:]
        assert kinds == ["approval.question", "approval.answer", "capability.intent", "capability.outcome"]

    @pytest.mark.parametrize(
        ("answer", "status", "reason"),
        [
            (lambda q: Answer("denied", q.args_hash), "denied", "approval_denied"),
            (lambda q: Answer("timeout", q.args_hash), "parked", "approval_timeout"),
            (lambda q: Answer("approved", "0" * 64, reviewer_class="human"), "denied", "approval_other_call"),
            (
                lambda q: Answer("approved", q.args_hash, scope="template", reviewer_class="human"),
                "denied",
                "approval_other_call",
            ),
            (lambda q: Answer("approved", q.args_hash), "denied", "approval_human_only"),
            (lambda q: 1 / 0, "parked", "approval_timeout"),
        ],
    )
    def test_answers(self, answer, status, reason):
        desk, log, _, token = self.tainted(approver=ScriptedApprover(answer))
        out = desk.gateway.call(token, "send_email", MAIL)
        assert (out.status, out.decision.reason) == (status, reason)
        assert len(log.of("capability.intent")) == 1  # the reading alone

    def test_without_an_approver_the_call_is_parked_and_not_denied(self):
        desk, _, _, token = self.tainted()
        out = desk.gateway.call(token, "send_email", MAIL)
        assert (out.status, out.public) == ("parked", "this call waits for approval")

    def test_a_token_that_runs_out_while_a_human_thinks_is_minted_afresh(self):
        slow = ScriptedApprover(approve)
        desk, _, clock, token = self.tainted(approver=slow)
        slow.answer = lambda q: (clock.advance(120), approve(q))[1]
        assert desk.gateway.call(token, "send_email", MAIL).done
        assert desk.gateway.call(token, "send_email", MAIL).decision.reason == "expired"

    def test_a_long_body_outlasts_its_token_too(self):
        slow = ScriptedApprover(approve)
        desk, _, clock, token = self.tainted(approver=slow)
        slow.answer = lambda q: (clock.advance(120), approve(q))[1]
        assert desk.gateway.call(token, "send_email", MAIL | {"body": "x" * 200_000}).done

    def test_a_task_revoked_while_a_human_thinks_stays_revoked(self):
        slow = ScriptedApprover(approve)
        desk, _log, clock, token = self.tainted(approver=slow)
        slow.answer = lambda q: (clock.advance(120), desk.revoke(), approve(q))[2]
        assert desk.gateway.call(token, "send_email", MAIL).decision.reason == "revoked"

    def test_a_reason_that_comes_up_while_a_human_thinks_was_not_approved(self):
        grants = ("read:inbox", "send:email[to=*]")
        slow = ScriptedApprover(approve)
        desk, log, _ = make_desk(*grants, approver=slow)
        token = desk.gateway.token(grants)

        def meanwhile(question):
            assert question.reasons == ("authority_unbounded",)
            assert desk.gateway.call(token, "read_inbox", {}).done
            return approve(question)

        slow.answer = meanwhile
        out = desk.gateway.call(token, "send_email", MAIL)
        assert (out.status, out.decision.reason) == ("denied", "approval_outdated")

    def test_budget_spent_while_a_human_thinks_is_spent(self):
        grants = ("read:inbox", "send:email[to=*@acme.com, max=1]")
        slow = ScriptedApprover(approve)
        desk, _, _ = make_desk(*grants, approver=slow)
        token = desk.gateway.token(grants)
        desk.gateway.call(token, "read_inbox", {})

        def meanwhile(question):
            slow.answer = approve
            assert desk.gateway.call(token, "send_email", MAIL).done
            return approve(question)

        slow.answer = meanwhile
        assert desk.gateway.call(token, "send_email", MAIL).decision.reason == "budget_calls"


@dataclass(frozen=True)
class FakeLabel:
    integrity: str = "user"
    sources: frozenset = frozenset()
    readers: frozenset | None = None


class TestLabels:
    def test_label_rules_only_tighten_and_their_errors_deny(self):
        class Rules:
            def __init__(self, word):
                self.word = word

            def decide(self, *_):
                if isinstance(self.word, Exception):
                    raise self.word
                return self.word

        for word, status, reason in [
            (None, "done", "rule_allow"),
            (Decision(DENY, "label_flow", layer="L4"), "denied", "label_flow"),
            (Decision(ASK, "label_ask", layer="L4"), "parked", "approval_timeout"),
            (ValueError(), "denied", "label_error"),
        ]:
            desk, _, _ = make_desk(TO_ACME, label_rules=Rules(word))
            out = desk.gateway.call(desk.gateway.token([TO_ACME]), "send_email", MAIL)
            assert (out.status, out.decision.reason) == (status, reason)

    def test_tracked_labels_replace_the_tasks_history(self):
        desk, _, _ = make_desk("read:inbox", TO_ACME)
        token = desk.gateway.token(["read:inbox", TO_ACME])
        desk.gateway.call(token, "read_inbox", {})
        trusted = {name: FakeLabel() for name in MAIL}
        assert desk.gateway.call(token, "send_email", MAIL, labels=trusted).done
        mixed = trusted | {"body": FakeLabel("untrusted", readers=frozenset({"me"}))}
        assert desk.gateway.call(token, "send_email", MAIL, labels=mixed).status == "parked"


def test_async_bodies():
    @tool("do:it", effect="read", roles={"n": "option"}, labels=PUBLIC)
    async def double(n: int = 2) -> int:
        await asyncio.sleep(0)
        return 2 * n

    desk, _, _ = make_desk("do:it[n=*]", tools=[double])
    token = desk.gateway.token(["do:it[n=*]"])
    assert desk.gateway.call(token, "double", {"n": 4}).value == 8
    assert asyncio.run(desk.gateway.acall(token, "double", {"n": 5})).value == 10
    assert asyncio.run(desk.gateway.acall(token, "double", {"n": "5"})).decision.reason == "type_confusion"

    async def within_a_loop():
        return desk.gateway.call(token, "double", {"n": 6})

    assert asyncio.run(within_a_loop()).value == 12


def test_a_sandboxed_body_runs_in_the_sandbox_or_not_at_all():
    @tool("do:it", effect="read", roles={}, labels=PUBLIC, runs="sandbox")
    def inside() -> str:
        return "on the host"

    class Sandbox:
        def run(self, declaration, body, args, timeout_s):
            return "in the sandbox"

    desk, _, _ = make_desk("do:it", tools=[inside])
    assert desk.gateway.call(desk.gateway.token(["do:it"]), "inside", {}).status == "failed"
    desk, _, _ = make_desk("do:it", tools=[inside], sandbox=Sandbox())
    assert desk.gateway.call(desk.gateway.token(["do:it"]), "inside", {}).value == "in the sandbox"
    assert asyncio.run(desk.gateway.acall(desk.gateway.token(["do:it"]), "inside", {})).value == "in the sandbox"


def test_explain_decides_as_call_does_and_leaves_no_trace():
    desk, log, _ = make_desk("send:email[to=*@acme.com, max=1]")
    token = desk.gateway.token(["send:email[to=*@acme.com, max=1]"])
    before = len(log.records)
    for _ in range(3):
        assert desk.gateway.explain(token, "send_email", MAIL).allowed
    assert desk.gateway.explain(token, "send_email", MAIL | {"to": "x@y.z"}).reason == "constraint"
    assert len(log.records) == before
    assert desk.gateway.call(token, "send_email", MAIL).done


def test_reading_public_trusted_output_does_not_taint():
    from saggar.capability.builtin import Flow

    desk, _, _ = make_desk("read:notes[day=*]")
    desk.gateway.call(desk.gateway.token(["read:notes[day=*]"]), "read_notes", {"day": "x"})
    assert desk.gateway.flow == Flow()
    assert changed(Flow(), private=True) != Flow()
    assert FieldLabel().private
    assert len(TOOLS) == 5


def test_a_tool_that_was_called_and_is_on_no_record_counts_as_changed():
    desk, log, _ = make_desk("read:inbox")
    assert desk.gateway.call(desk.gateway.token(["read:inbox"]), "read_inbox", {}).done
    mine = desk.gateway.declarations().values()
    assert past_of(log.records).changed(mine) == []
    bare = past_of([r for r in log.records if r["kind"] != "capability.tools"])
    assert (bare.opened, bare.changed(mine)) == (False, ["read_inbox"])
