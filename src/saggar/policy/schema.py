"""The published JSON schema of the policy file, made from the table that the loader itself walks.

A schema is weaker than the loader: it cannot see public suffixes, rules that contradict each other, or IDNA. What it
refuses, the loader refuses as well (a test compares them).
"""

from __future__ import annotations

from saggar.policy.model import Policy
from saggar.policy.table import ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def document() -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Saggar task policy (saggar.toml)",
        **ROOT.schema(Policy()),
    }
