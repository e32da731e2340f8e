from __future__ import annotations

import pytest

from saggar.plan.naming import named_in


@pytest.mark.parametrize(
    ("request_", "name", "named"),
    [
        ("open the link that Bob posted", "Bob", True),
        ("open Bob's link, then Eve’s", "Bob", True),
        ("open Bob's link, then Eve’s", "Eve", True),
        ("ask Ann, Bob and Bob Smith.", "Bob", True),
        ("the mail by Bob Smith", "Bob Smith", True),
        ("the mail by bob@x.test", "bob@x.test", True),
        ("what @bob wrote", "bob", True),
        ("what @bob wrote", "@bob", True),
        # common words, whoever calls himself by them
        ("Open the link", "the", False),
        ("Open the link", "link", False),
        ("Open the link", "Open", False),
        ("Go there. Please read it", "Please", False),
        ("may I read it", "I", False),
        # another name that looks like it, or is a part of it
        ("the mail by Bob", "Ｂｏｂ.", False),
        ("the mail by Bob", "bob", False),
        ("the mail by Bob", "Bob.", False),
        ("the mail by Bob Smith", "Bob", False),
        ("the mail by Bob Smith", "Smith", False),
        # what begins a sentence is capital for its place, so nobody can say where the name begins
        ("Bob Smith wrote", "Smith", False),
        ("the mail by bob@x.test", "bob", False),
        ("the mail by Bob", "", False),
    ],
)
def test_named_in(request_, name, named):
    assert named_in(request_, name) is named
