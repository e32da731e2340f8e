"""`saggar bench NAME`: attack and measure this installation. One table from name to module, each loaded when called."""

from __future__ import annotations

import sys

from saggar.core.errors import UsageError

#: name -> (module with `main(argv) -> int`, one line)
BENCHES: dict[str, tuple[str, str]] = {
    "escapes": (
        "saggar.bench.escapes.cli",
        "named escape attempts from inside a real cell, each with its positive control",
    ),
    "egress": (
        "saggar.bench.egress.cli",
        "named ways out of a real cell, each refused with its reason while a listed name gets through",
    ),
    "agentdojo": (
        "saggar.bench.agentdojo.cli",
        "prompt injection: 949 pairs of AgentDojo without a model, in plan and monitor mode",
    ),
    "tau2": ("saggar.bench.tau2.cli", "false denials: tau2's reference actions replayed through monitor mode"),
    "toolemu": ("saggar.bench.toolemu.cli", "ToolEmu's procedure on a case file, with your emulator and judge models"),
}


def main(argv: list[str]) -> int:
    names = argv[1:]
    if not names or names[0] in ("-h", "--help"):
        width = max(map(len, BENCHES))
        lines = "\n".join(f"  {name:<{width}}  {about}" for name, (_, about) in BENCHES.items())
        sys.stdout.write(f"usage: saggar bench NAME [--json] ...\n\n{lines}\n")
        return 0
    known = BENCHES.get(names[0])
    if known is None:
        raise UsageError(f"no bench is called `{names[0]}`", hint=f"one of {', '.join(BENCHES)}")
    from importlib import import_module

    status = import_module(known[0]).main(names)
    return int(status)
