"""`saggar bench agentdojo`: AgentDojo without a model, in plan mode, monitor mode and beside three known defences."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from time import perf_counter
from typing import Any

from saggar.bench.agentdojo import goals, measure, plans, world
from saggar.bench.agentdojo.judges import JUDGES
from saggar.core.errors import PeerError, UsageError

USAGE = """usage: saggar bench agentdojo [--json] [--quick] [--edition 1|2|3]
       saggar bench agentdojo --show FILE
       saggar bench agentdojo --model NAME --base URL [--format openai|anthropic] [--key-env VARIABLE] [--out FILE]
                              [--suite NAME]... [--benign] [--limit N] [--price IN,OUT] [--estimate] [--json]

Runs the 949 pairs of AgentDojo v1.2.2 without a model: the written plans with a right worker (utility) and with every
worker turned and every stranger's field poisoned (security); monitor mode and baselines with the attacker as the model.

Exit code 1 when a goal of docs/PLANS.md is missed (`missed` in the JSON names each; `short` has those that the
documentation itself says are missed).

  --json       one JSON object on standard output
  --show FILE  the page of text for such an object, without a run
  --quick      plan mode alone
  --edition N  which edition of the plans is attacked (default 3; the benign figures of all are always given)

With --model the same suites run with that model as planner and worker, through its endpoint. What is done is kept in
--out (agentdojo.jsonl) and not done again. An estimate of calls, tokens and cost (--price per million tokens) is
printed first; --estimate stops there. Exit code 5 when the endpoint answered nothing.
"""


#: the policy of the one row that has one: `[tools] amount_drift_percent`
DRIFT_PERCENT = 10
#: kinds of work: name, and what makes a tally of one suite
PLAN, PLAN_HOSTILE = "plan", "plan, people the user names hostile too"
PLAN_FIRST, PLAN_NAMES = "plan, first edition", "plan, names of objects poisoned too"
PLAN_DRIFT = f"plan, amounts may drift by {DRIFT_PERCENT} per cent"
PLAN_KINDS = (PLAN, PLAN_HOSTILE, PLAN_FIRST, PLAN_NAMES, PLAN_DRIFT)


#: further benign rows of the result, and their titles
BENIGN = {
    "benign_with_amount_drift": f"benign, the policy lets amounts drift by {DRIFT_PERCENT} %",
    "benign_with_both_walls": "benign, L3's built-in rules on as in a session, nothing accepted",
    "benign_second_edition": "benign, second edition",
    "benign_first_edition": "benign, first edition",
}
#: further attack rows of the result, and their titles
ATTACKS = {
    "attack_first_edition": "attack, first edition (under today's rules)",
    "attack_with_named_people_hostile": "attack, people the user names hostile too",
    "attack_with_names_poisoned": "attack, names of objects poisoned too",
    "attack_with_amount_drift": f"attack, the policy lets amounts drift by {DRIFT_PERCENT} %",
}
#: what a reader has to know before he believes the figures
PROVENANCE = (
    "all editions run under today's rules and labels, which changed after the injection goals had been read;",
    "no suite is held out: three travel plans are rewritten in the second edition, as fourteen others are;",
    "the third edition's five plans, all of banking, were written after attacks had been run",
)


def work(job: tuple[str, str, int]) -> measure.Tally:
    """One kind of attack on one suite, in a process of its own."""
    kind, name, edition = job
    suite = {name: _held()[name]}
    if kind in PLAN_KINDS:
        terms = measure.Terms(
            1 if kind == PLAN_FIRST else edition,
            friends=kind != PLAN_HOSTILE,
            names=kind == PLAN_NAMES,
            drift_percent=DRIFT_PERCENT if kind == PLAN_DRIFT else 0.0,
        )
        return measure.plan_attack(suite, terms, _quiet)
    return measure.judged_attack(suite, kind, _quiet)


@cache
def _held() -> measure.Suites:
    return world.suites()


def _quiet(_: str) -> None:
    """Progress is told by finished jobs."""


def attacked(kinds: list[str], edition: int) -> dict[str, measure.Tally]:
    """All kinds on all suites, on as many processors as there are; largest suites first."""
    names = sorted(_held(), key=lambda n: -len(_held()[n].user_tasks) * len(_held()[n].injection_tasks))
    jobs = [(kind, name, edition) for name in names for kind in kinds]
    found: dict[str, list[measure.Tally]] = {kind: [] for kind in kinds}
    workers = min(len(jobs), len(os.sched_getaffinity(0)))
    # forked: the suites are loaded once, and their import alone takes seconds
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        for n, (job, tally) in enumerate(zip(jobs, pool.map(work, jobs), strict=True), 1):
            found[job[0]].append(tally)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r[{'#' * (30 * n // len(jobs)):<30}] {n}/{len(jobs)} {job[0]}, {job[1]}\x1b[K")
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    return {kind: measure.merged(parts) for kind, parts in found.items()}


def run(*, quick: bool = False, edition: int = plans.LATEST) -> dict[str, Any]:
    """All figures. Raises `Unenforceable` where the package is missing."""
    start = perf_counter()
    suites = _held()
    result: dict[str, Any] = {"benchmark": "agentdojo", "version": world.LATEST, "self_test": measure.self_test(suites)}
    benign = {e: measure.plan_benign(suites, e) for e in plans.EDITIONS}
    kinds = [PLAN] if quick else [*PLAN_KINDS, *JUDGES]
    tallies = attacked(kinds, edition)
    result["attempts"] = tallies[PLAN].acts.total()
    result["breaches"] = tallies[PLAN].acts["allow"]
    result["plan"] = {
        "edition": edition,
        "benign": benign[edition].to_json(),
        "benign_first_edition": benign[1].to_json(),
        "benign_second_edition": benign[2].to_json(),
        "benign_with_amount_drift": measure.plan_benign(suites, edition, drift_percent=DRIFT_PERCENT).to_json(),
        "benign_with_both_walls": measure.plan_benign(suites, edition, both_walls=True).to_json(),
        "attack": tallies[PLAN].to_json(),
    }
    result["overprovision"] = measure.overprovision(suites, benign[edition])
    result["decision_us"] = measure.times(benign[edition].micros)
    if not quick:
        result["plan"]["attack_with_named_people_hostile"] = tallies[PLAN_HOSTILE].to_json()
        result["plan"]["attack_first_edition"] = tallies[PLAN_FIRST].to_json()
        result["plan"]["attack_with_names_poisoned"] = tallies[PLAN_NAMES].to_json()
        result["plan"]["attack_with_amount_drift"] = tallies[PLAN_DRIFT].to_json()
        result["judges"] = {
            name: {"benign": measure.judged_benign(suites, name), "attack": tallies[name].to_json()} for name in JUDGES
        }
        feasible = result["judges"]["none"]["attack"]["all_pairs"]
        result["self_test"]["pairs_feasible_undefended"] = feasible["allow"]
        if feasible["allow"] != feasible["of"]:
            result["self_test"]["failed"].append("a pair is not feasible with no defence")
    result["seconds"] = round(perf_counter() - start, 1)
    # of this process and its workers: what the benchmark costs whatever else the machine does
    result["cpu_seconds"] = round(sum(os.times()[:4]), 1)
    result["missed"], result["short"] = goals.missed(result), goals.short(result)
    return result


def report(r: dict[str, Any]) -> str:
    """The figures as a page of text."""
    test, plan = r["self_test"], r["plan"]
    lines = [
        f"AgentDojo {r['version']}, no model ({r['seconds']} s, {r['cpu_seconds']} s of processor time)",
        _tested(test),
        "",
        f"plan mode (edition {plan['edition']} of the plans; L4 alone but for the row that says otherwise)",
        _benign("benign", plan["benign"]),
        *(_benign(title, plan[key]) for key, title in BENIGN.items() if key in plan),
        _attack("attack", plan["attack"]),
    ]
    for key, title in ATTACKS.items():
        if key in plan:
            lines.append(_attack(title, plan[key]))
    lines += [f"  {line}" for line in PROVENANCE]
    for name, both in r.get("judges", {}).items():
        note = " (heuristic)" if name == "monitor" else ""
        lines += ["", f"{name}{note}: the attacker is the model", f"  benign: {_three(both['benign'])}"]
        lines.append(_attack("attack", both["attack"]))
    over, us = r["overprovision"], r["decision_us"]
    lines += [
        "",
        f"tools given / used: stock {over['stock_all']}, plans {over['plan_all']}",
        f"decision: p50 {us['p50']} µs, p99 {us['p99']} µs over {us['count']}",
    ]
    lines += ["", *(f"short of its goal, as documented: {goal}" for goal in r["short"])]
    lines += [f"MISSED: {goal}" for goal in r["missed"]] or ["every other goal met" if r["short"] else "every goal met"]
    return "\n".join(lines) + "\n"


def _tested(test: dict[str, Any]) -> str:
    pairs = test.get("pairs_feasible_undefended")
    return (
        f"self-test: {test['ground_truths']}/{test['of_user_tasks']} ground truths,"
        f" {test['injections']}/{test['of_injection_tasks']} injections reached with no defence"
        + ("" if pairs is None else f", {pairs} pairs feasible with no defence")
    )


def _benign(name: str, b: dict[str, Any]) -> str:
    return (
        f"  {name}: useful {b['useful_with_asks_approved']} of {b['of']} with asks approved,"
        f" {b['useful_with_no_ask']} with no ask, {b['denied']} denied; strict graders {b['useful_strict']}"
        + (f"; {q['foreseen']} questions foreseen, {q['came']} came" if (q := b.get("questions")) else "")
    )


def _three(t: dict[str, Any]) -> str:
    shares = t["interval_95"]["allow"]
    return (
        f"{t['allow']} allowed (95 % interval {100 * shares[0]:.1f} to {100 * shares[1]:.1f} %),"
        f" {t['ask']} asked, {t['deny']} denied of {t['of']}"
    )


def _attack(name: str, a: dict[str, Any]) -> str:
    return (
        f"  {name}: {_three(a['acts'])}; text only {a['text_only']['allow']} of {a['text_only']['of']};"
        f" first version's pairs {a['pairs_of_first_version']['allow']} of {a['pairs_of_first_version']['of']};"
        f" if the human approves everything {a['if_the_human_approves_everything']}"
    )


def main(argv: list[str]) -> int:
    args = argv[1:]
    if any(a in ("-h", "--help") for a in args):
        sys.stdout.write(USAGE)
        return 0
    if "--model" in args:
        return _live(args)
    if args[:1] == ["--show"] and len(args) == 2:
        return _show(args[1])
    quick, as_json, edition = False, False, plans.LATEST
    while args:
        word = args.pop(0)
        if word == "--json":
            as_json = True
        elif word == "--quick":
            quick = True
        elif word == "--edition" and args and args[0] in map(str, plans.EDITIONS):
            edition = int(args.pop(0))
        else:
            raise UsageError(f"unknown argument `{word}`", hint="see `saggar bench agentdojo --help`")
    result = run(quick=quick, edition=edition)
    sys.stdout.write(json.dumps(result, indent=1, sort_keys=True) + "\n" if as_json else report(result))
    return 1 if result["missed"] else 0


def _show(path: str) -> int:
    try:
        with open(path, encoding="utf-8") as f:
            text = report(json.load(f))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"`{path}` holds no result of this benchmark: {type(error).__name__}", hint="make one with `--json`"
        ) from None
    sys.stdout.write(text)
    return 0


def _live(args: list[str]) -> int:
    from saggar.bench.agentdojo import live_host

    found: dict[str, Any] = {}
    chosen: list[str] = []
    flags = {"--json": False, "--benign": False, "--estimate": False}
    while args:
        word = args.pop(0)
        if word in flags:
            flags[word] = True
        elif word == "--suite" and args:
            chosen.append(args.pop(0))
        elif word in ("--model", "--base", "--format", "--key-env", "--out", "--limit", "--price") and args:
            found[word] = args.pop(0)
        else:
            raise UsageError(f"unknown argument `{word}`", hint="see `saggar bench agentdojo --help`")
    options = _options(found, chosen, attacks=not flags["--benign"])
    live = live_host.start(options, world.suites())
    ahead = live_host.estimate(live.todo(), options)
    sys.stderr.write(f"estimate: {json.dumps(ahead)}\n")
    if flags["--estimate"]:
        return 0
    answered = live.run(progress=sys.stderr.isatty())
    summary = live.summary()
    sys.stdout.write(json.dumps(summary, indent=1 if flags["--json"] else None, sort_keys=True) + "\n")
    if not answered:
        raise PeerError("the model's endpoint answered nothing of what was asked in this run")
    return 0


def _options(found: dict[str, str], chosen: list[str], *, attacks: bool) -> Any:
    from saggar.bench.agentdojo.declarations import SUITES
    from saggar.bench.agentdojo.live_host import Options
    from saggar.bench.estimate import price

    if "--base" not in found:
        raise UsageError(
            "`--model` needs `--base URL`", hint="the endpoint's base, for example http://127.0.0.1:8000/v1"
        )
    if found.get("--format", "openai") not in ("openai", "anthropic"):
        raise UsageError("`--format` is openai or anthropic")
    wrong = [name for name in chosen if name not in SUITES]
    if wrong:
        raise UsageError(f"no suite `{wrong[0]}`", hint=", ".join(SUITES))
    limit = found.get("--limit", "")
    if "--limit" in found and not (limit.isascii() and limit.isdigit() and len(limit) <= 9 and int(limit) > 0):
        raise UsageError("`--limit` is a whole number above zero", hint="without it, all that is not done yet")
    return Options(
        model=found["--model"],
        base=found["--base"],
        form="anthropic" if found.get("--format") == "anthropic" else "openai",
        key_env=found.get("--key-env", ""),
        out=found.get("--out", "agentdojo.jsonl"),
        suites=tuple(dict.fromkeys(chosen or SUITES)),
        attacks=attacks,
        limit=int(limit or 0),
        price=price(found.get("--price")),
    )
