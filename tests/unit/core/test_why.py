from __future__ import annotations

import inspect
import re

import pytest

from saggar.capability import builtin
from saggar.core.why import WHY, why
from saggar.plan import flow


def test_every_reason_of_the_plan_wall_has_plain_words():
    given = set(re.findall(r'"plan\.\w+", "(\w+)"', inspect.getsource(flow)))
    assert given >= {"untrusted_authority", "untrusted_amount", "reader_not_named"}
    assert given <= set(WHY)


def test_every_reason_of_a_built_in_rule_has_plain_words():
    given = set(re.findall(r'Finding\(\w+, "(\w+)"', inspect.getsource(builtin)))
    assert len(given) > 3
    assert given <= set(WHY)


@pytest.mark.parametrize(("reason", "words"), [("the policy's own words", "the policy's own words"), ("", "")])
def test_what_is_no_reason_of_ours_is_its_own_words(reason, words):
    assert why(reason) == words
