"""A rule that answers an ask for good: proposed as a change to the policy file's text, never made.

I1  The proposed file loads, and says what the present one says and the one new rule; else there is no proposal.
I2  The new rule has every condition of the rule that asked; it answers no more questions than that one puts.
I3  An exact path that a pattern cannot say exactly (it holds a `*`) is not proposed.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from typing import TYPE_CHECKING

from saggar.core.errors import SaggarError, UsageError
from saggar.policy.load import parse
from saggar.policy.show import literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from saggar.policy.model import EgressRule

_RULES = re.compile(r"\brules[ \t]*=[ \t]*\[")
_NEXT_LINE = re.compile(r"[ \t]*(?:#[^\n]*)?\n([ \t]*)")


def proposal(
    text: str,
    file: str,
    host: str,
    port: int,
    *,
    grant: str,
    method: str,
    paths: Sequence[str],
    exact: bool,
    conditions: Mapping[str, Any],
) -> str:
    """Lines of a unified diff that adds `{ effect = "approve", … }` to the rules of `host`. text: what `file` holds.

    grant: id of the entry whose rule asked. exact: each path stands for itself. conditions: what else the asking rule asks for
    (`query`, `headers`, `content_types`, `max_body`): an `approve` is an allow, so it must ask for no less. Raises UsageError where no such change can be written, with the rule to write by hand.
    """
    rule: dict[str, Any] = {"effect": "approve", "methods": [method], "paths": list(paths), **conditions}
    if exact and any("*" in path for path in paths):
        raise UsageError("the path holds a `*`, which in a policy stands for anything", hint="approve it for the task")
    before = parse(text, file).egress.allow
    at = next((i for i, r in enumerate(before) if (r.id, r.host) == (grant, host) and port in r.ports and r.http), -1)
    if at >= 0:
        wanted = _with_rule(before, at, rule)
        for proposed in _insertions(text, literal(rule)):
            try:
                if parse(proposed, file).egress.allow == wanted:
                    return _diff(text, proposed, os.path.basename(file))
            except SaggarError:
                continue
    raise UsageError(
        f"no change to `{file}` can be written that adds the rule safely",
        hint=f"add it to the `rules` of `{host}` by hand: {literal(rule)}",
    )


def _with_rule(before: tuple[EgressRule, ...], at: int, rule: dict[str, Any]) -> tuple[EgressRule, ...]:
    http = json.loads(before[at].http)
    http["rules"] = [rule, *http.get("rules", [])]
    changed = before[at].replace(http=json.dumps(http, sort_keys=True, separators=(",", ":")))
    return (*before[:at], changed, *before[at + 1 :])


def _insertions(text: str, rule: str) -> Iterator[str]:
    """`text` with the rule first in each list that is called `rules`."""
    for found in _RULES.finditer(text):
        head, tail = text[: found.end()], text[found.end() :]
        line = _NEXT_LINE.match(tail)
        yield f"{head}\n{line[1]}{rule},{tail}" if line else f"{head}{rule}, {tail}"


def _diff(before: str, after: str, name: str) -> str:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
