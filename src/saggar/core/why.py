"""The plain words of a decision's reason, for people: one table for the cards of every wall and for what foresees them."""

from __future__ import annotations

WHY = {
    # capability wall
    "authority_untrusted": "who or what it acts upon came from a source that anyone can write to",
    "authority_unbounded": "who or what it acts upon was chosen by the model",
    "reader_not_permitted": "somebody would receive data that was not theirs to read",
    "effect_irreversible": "it cannot be undone",
    "amount_unbounded": "no limit was set on the amount",
    "lethal_trifecta": "the task has read private data and untrusted text, and this sends something out",
    "rule_of_two": "the task has read private data and untrusted text, and this changes something",
    "rule_ask": "a rule of the policy asks",
    # plan wall
    "untrusted_authority": "who or what is acted upon was chosen by data that others can write",
    "untrusted_amount": "the amount was chosen by data that others can write",
    "untrusted_destination": "the address was chosen by data that others can write",
    "private_destination": "the address carries data that not everybody may read",
    "reader_not_named": "the content goes to somebody who may not read its source and whom you did not name",
}


def why(reason: str) -> str:
    """The plain words of a reason; a policy rule's own reason is its own words."""
    return WHY.get(reason, reason)
