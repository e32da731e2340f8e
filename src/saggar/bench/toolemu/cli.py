"""`saggar bench toolemu`: ToolEmu's procedure on a case file, with models that the user names."""

from __future__ import annotations

import json
import os
import secrets
import sys

from saggar.bench.estimate import price
from saggar.bench.kept_host import Kept
from saggar.bench.toolemu import cases, run
from saggar.core.errors import UsageError
from saggar.plan.endpoint import Format, key_header
from saggar.plan.endpoint_host import Endpoint

USAGE = """usage: saggar bench toolemu --model NAME --base URL [--emulator NAME] [--judge NAME] [--format openai|anthropic]
                            [--key-env VARIABLE] [--cases FILE [--toolkits FILE]] [--limit N] [--out FILE]
                            [--price IN,OUT] [--estimate] [--json]

The agent's model plans and reads, the emulator's plays the tools, the judge's grades what was done; all on one endpoint.
Without --cases the small set that ships is run. FILE is in ToolEmu's public format.

What is done is kept in --out and not done again. An estimate of calls, tokens and cost (--price per million tokens) is
printed first; --estimate stops there.
"""
_TAKES = ("--model", "--base", "--emulator", "--judge", "--format", "--key-env", "--cases", "--toolkits", "--limit", "--out",
          "--price")  # fmt: skip


def main(argv: list[str]) -> int:
    found: dict[str, str] = {}
    args, as_json, stop = argv[1:], False, False
    while args:
        word = args.pop(0)
        if word in ("-h", "--help"):
            sys.stdout.write(USAGE)
            return 0
        if word == "--json":
            as_json = True
        elif word == "--estimate":
            stop = True
        elif word in _TAKES and args:
            found[word] = args.pop(0)
        else:
            raise UsageError(f"unknown argument `{word}`", hint="see `saggar bench toolemu --help`")
    if "--model" not in found or "--base" not in found:
        raise UsageError("`--model` and `--base` are needed", hint="see `saggar bench toolemu --help`")
    held = cases.own() if "--cases" not in found else cases.read(_read(found["--cases"]), _kits(found))
    if "--limit" in found:
        if not found["--limit"].isdecimal() or not found["--limit"].isascii():
            raise UsageError("`--limit` is a number")
        held = held[: int(found["--limit"])]
    agent, emulator, judge = (
        _endpoint(found, found.get(role, found["--model"])) for role in ("", "--emulator", "--judge")
    )
    kept = Kept(found.get("--out", ""), found["--model"], "case")
    kept.load()
    todo = [c for c in held if c.name not in kept.done]
    sys.stderr.write(f"estimate: {json.dumps(run.estimate(todo, price(found.get('--price'))))}\n")
    if stop:
        return 0
    kept.ready()
    for n, case in enumerate(todo, 1):
        kept.add(run.run(case, agent, emulator, judge, lambda: secrets.token_hex(8)) | {"model": found["--model"]})
        if sys.stderr.isatty():
            sys.stderr.write(f"\r[{'#' * (30 * n // len(todo)):<30}] {n}/{len(todo)} {case.name[:50]:<50}")
    total = run.summary([kept.done[c.name] for c in held])
    if not as_json:
        total.pop("cases")
    sys.stdout.write(json.dumps(total, indent=1, sort_keys=True) + "\n")
    return 0


def _kits(found: dict[str, str]) -> str:
    return _read(found["--toolkits"]) if "--toolkits" in found else ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as f:
            return f.read(64 * 1024 * 1024)
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"cannot read `{path}`: {err}") from None


def _endpoint(found: dict[str, str], model: str) -> Endpoint:
    form: Format = "anthropic" if found.get("--format") == "anthropic" else "openai"
    headers = key_header(form, found.get("--key-env", ""), os.environ)
    return Endpoint(form, found["--base"], model, headers=headers)
