"""Twin of capability.reach."""

from __future__ import annotations

import pytest

from saggar.capability.grant import compile_capability
from saggar.capability.reach import lines_of, reach
from saggar.testing.capability_desk import DECLARATIONS


def of(*texts):
    return reach(DECLARATIONS, [g for t in texts for g in compile_capability(t, DECLARATIONS)])


@pytest.mark.parametrize(
    ("texts", "trifecta", "two"),
    [
        (["read:inbox", "send:email[to=bob@acme.com]"], True, True),
        (["read:inbox"], False, False),
        (["send:email[to=bob@acme.com]"], False, False),
        (["read:inbox", "write:file[/w/**]"], False, False),  # can be undone, and stays here
        (["read:notes[day=*]", "send:email[to=bob@acme.com]"], False, False),
        ([], False, False),
    ],
)
def test_legs(texts, trifecta, two):
    found = of(*texts)
    assert (found.trifecta, found.rule_of_two) == (trifecta, two)
    assert ("reachable; the call" in "\n".join(lines_of(found))) is trifecta


def test_open_authority():
    assert of("send:email[to=*]").open_authority == ("send_email.to",)
    assert of("send:email[to=*@acme.com, cc=*]").open_authority == ("send_email.cc",)
    assert of("send:email[to=*@acme.com]", "send:email[to=*]").open_authority == ("send_email.to",)
    assert of("send:email[to=*@acme.com]").open_authority == ()
