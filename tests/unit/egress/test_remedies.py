"""Every refusal names host and remedy: a walk over all the reasons that the source can give."""

from __future__ import annotations

import ast
import os
import re

import pytest

from saggar.core.decision import DENY
from saggar.egress import http_head, path
from saggar.egress.admit import refuse
from saggar.egress.answer import refusal_page
from saggar.egress.authorize import public_text
from saggar.egress.destination import Destination
from saggar.egress.hold_host import _REFUSALS
from saggar.egress.remedies import REMEDIES, UPSTREAM_FAULTS, WHAT, explain, remedy

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SOURCE = os.path.join(ROOT, "src", "saggar", "egress")
PLACE = Destination("api.allowed.test", 443, "https")

#: of a policy that does not load, or no refusals
NOT_TOLD = {"bad_pattern", "bad_rule", "bad_terms", "bad_source", "bad_profile", "bad_format", "bad_budget", "secret_too_short",
            "removed", "repeated", "withdrawn", "unreadable", "unsolicited_answer"}  # fmt: skip
#: functions whose first argument, or whose keyword `reason`, is a reason
GIVERS = {"refuse", "refuse_for", "give_up", "_stop_upload", "_stop", "_Bad", "_break", "DialError", "_none", "Refusal",
          "on_upstream_lost", "_terminate"}  # fmt: skip


def given():
    """Reasons as they stand in the source: literal arguments, `reason=`, and what the tables name."""
    found = set(path._HIDDEN.values()) | {r for r, _ in _REFUSALS.values()} | set(http_head.STATUS)
    for name in sorted(os.listdir(SOURCE)):
        if not name.endswith(".py"):
            continue
        with open(os.path.join(SOURCE, name), encoding="utf-8") as f:
            tree = ast.parse(f.read())
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            values = [k.value for k in node.keywords if k.arg == "reason"]
            if called in GIVERS:
                values += node.args[:1]
            if called in ("_bad", "_refuse"):
                values += node.args[1:2]
            found |= {v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)}
    return {r for r in found if re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", r)} - NOT_TOLD


REASONS = sorted(given())


def test_the_walk_sees_them_all():
    assert len(REASONS) >= 80
    assert {"host_not_listed", "canary", "path_dot_segment", "upstream_certificate", "budget_rate", "token_answer_malformed",
            "approval_denied", "address_refused", "bad_frame", "sigv4_streaming", "metadata_name"} - set(REASONS) <= {
                "host_not_listed", "metadata_name"}  # fmt: skip  # those two come from `match`, by return


@pytest.mark.parametrize("reason", [*REASONS, "host_not_listed", "port_not_listed", "metadata_name"])
def test_each_reason_has_a_remedy_of_its_own(reason):
    named = reason in REMEDIES or any(n.endswith("_") and reason.startswith(n) for n in REMEDIES)
    assert named, reason
    assert remedy(reason, PLACE)
    assert "{" not in explain(reason, PLACE) + explain(reason)


@pytest.mark.parametrize("reason", REASONS)
def test_the_page_of_a_terminated_host_names_host_rule_and_remedy(reason):
    refused = refuse(reason, PLACE, UPSTREAM_FAULTS.get(reason, "what is wrong"), detail={"cause": "not-to-be-told"})
    page = refusal_page(refused.status, reason, refused.decision.public, rule="egress.allow[3]").decode()
    head, _, body = page.partition("\r\n\r\n")
    assert "api.allowed.test:443" in body
    assert "egress.allow[3]" in body
    assert remedy(reason, PLACE) in body
    assert f"({reason})" in body
    assert f"X-Saggar-Reason: {reason}" in head
    assert "not-to-be-told" not in page
    assert f"Content-Length: {len(body)}" in head


@pytest.mark.parametrize("reason", [r for r in WHAT if "{where}" in WHAT[r]])
def test_the_line_of_a_plain_host_names_it(reason):
    assert "api.allowed.test:443" in public_text(reason, PLACE)
    assert "this host" in public_text(reason)


@pytest.mark.parametrize("reason", sorted(http_head.STATUS))
def test_the_page_of_a_plain_host_has_its_status(reason):
    page = http_head.refusal(reason, public_text(reason, PLACE), rule="r").decode()
    assert page.startswith(f"HTTP/1.1 {http_head.STATUS[reason]} ")
    assert "[rule `r`]" in page
    assert remedy(reason, PLACE) in page


def test_a_rules_own_reason_is_mended_by_the_rule():
    refused = refuse("files_closed", PLACE, "GET /x: deny by rule `x`", rule="x")
    assert refused.decision.effect == DENY
    assert "the operator's rule forbids it" in refused.decision.public


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_stands_in_the_docs(reason):
    with open(os.path.join(ROOT, "docs", "EGRESS.md"), encoding="utf-8") as f:
        told = set(re.findall(r"`([a-z0-9_]+\*?)`", f.read()))
    assert reason in told or any(t.endswith("*") and reason.startswith(t[:-1]) for t in told)
