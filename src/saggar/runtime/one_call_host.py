"""The capability of one call of a plan: a child of the session's own token.

I1  A child, never a root: its call is charged to the session's accounts, and judged by what the session's author wrote.
I2  Total: arguments that no call can have get the session's token, and the gateway's own refusal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from saggar.capability.call import BadCall, prepare
from saggar.capability.desk_host import Purse
from saggar.capability.exact import exactly
from saggar.capability.grant import Grant
from saggar.capability.mint import attenuate_local
from saggar.capability.steps import granted
from saggar.core.decision import ALLOW
from saggar.runtime.tools_host import ToolSession


@dataclass(slots=True)
class OneCall:
    """Implements `plan.execute.Capabilities`. held: the session's grants, of which each call gets the first that allows it,
    narrowed to its arguments."""

    tools: ToolSession
    held: tuple[Grant, ...]
    #: one grant a token, so that a session with many long capabilities leaves room for the child
    purses: dict[int, Purse] = field(default_factory=dict)

    def mint(self, tool: str, args: Mapping[str, Any], ttl_s: float) -> str:
        declaration = self.tools.gateway.declaration(tool)
        if declaration is None:
            return self.tools.token()
        try:
            call = prepare(declaration, args, self.tools.id)
        except BadCall:
            return self.tools.token()
        for i, grant in enumerate(self.held):
            if grant.refuses(declaration, call.args) == ("", ""):
                if i not in self.purses:
                    self.purses[i] = Purse(self.tools.gateway, [grant])
                return self._child(self.purses[i].token(), exactly(grant, call.args), int(ttl_s))
        # nothing that the session has allows this call; the gateway says so, with its own reason
        return self.tools.token()

    def _child(self, parent: str, grant: Grant, ttl_s: int) -> str:
        if grant.budget.calls != 0:
            grant = replace(grant, budget=replace(grant.budget, calls=1))
        detail = {"subject": "plan", "ttl_s": ttl_s, "capabilities": [granted(grant)]}
        self.tools.audit.append("capability.granted", layer="L3", effect=ALLOW, reason="narrowed", detail=detail)
        return attenuate_local(parent, [grant], random=os.urandom, subject="plan", ttl_s=ttl_s, max_depth=1)
