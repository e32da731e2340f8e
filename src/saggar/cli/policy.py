"""`saggar policy show|check|schema|explain|tighten`: what a policy comes to, and whether it is sound."""

from __future__ import annotations

import argparse
import json
import os
import sys

from saggar.core.errors import UsageError
from saggar.policy.load import check, effective, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from saggar.policy.lint import Finding
    from saggar.policy.model import Policy


TIGHTEN = "propose the smaller allowlist that past runs would have done with"
LEARN = "run a command under the policy as it is, and propose what it was refused"
EXPLAIN = "say which capability and which rule decide a call of a tool"


def main(argv: list[str]) -> int:
    """argv[0] is `policy`. Exit code 0, or 2 for a policy that does not load."""
    parser = argparse.ArgumentParser(prog="saggar policy", description="Show, check and describe policy files.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print the effective policy with the origin of each value")
    add_flags(show)
    show.add_argument("--json", action="store_true", help="print JSON")
    checker = actions.add_parser("check", help="report everything wrong with a policy file")
    checker.add_argument("file", metavar="FILE")
    checker.add_argument("--json", action="store_true", help="print JSON")
    actions.add_parser("schema", help="print the JSON schema of policy files")
    if argv[1:2] == ["learn"]:
        from saggar.cli.learn import main as learn

        return learn(argv[1:])
    actions.add_parser("learn", help=LEARN)
    if argv[1:2] == ["explain"]:
        return _explain(actions.add_parser("explain", help=EXPLAIN), parser, argv[1:])
    if argv[1:2] == ["tighten"]:
        return _tighten(actions.add_parser("tighten", help=TIGHTEN), parser, argv[1:])
    actions.add_parser("explain", help=EXPLAIN)
    actions.add_parser("tighten", help=TIGHTEN)
    args = parser.parse_args(argv[1:])
    action: Callable[[argparse.Namespace], int] = {"show": _show, "check": _check, "schema": _schema}[args.action]
    return action(args)


def _tighten(action: argparse.ArgumentParser, parser: argparse.ArgumentParser, words: list[str]) -> int:
    from saggar.cli.tighten import add_arguments, run

    add_arguments(action)
    return run(parser.parse_args(words))


def _explain(action: argparse.ArgumentParser, parser: argparse.ArgumentParser, words: list[str]) -> int:
    from saggar.cli.explain import add_arguments, explain

    add_flags(action)
    add_arguments(action)
    args = parser.parse_args(words)
    return explain(policy_of(args), args)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that change a policy, as `saggar run` has them."""
    parser.add_argument(
        "--policy", metavar="FILE", help="the policy file, in place of $SAGGAR_POLICY and the user's own"
    )
    parser.add_argument("--allow", metavar="HOST[:PORT]", action="append", default=[], help="allow one more host")
    parser.add_argument("--tier", metavar="TIER", help="the least isolation tier")
    parser.add_argument("--workspace", metavar="DIR[:MODE]", help="the workspace and how the command sees it")
    parser.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help="set a variable inside")
    parser.add_argument("--timeout", metavar="TIME", help="wall-clock limit, such as `10m`, or `none`")


def policy_of(args: argparse.Namespace) -> Policy:
    """The policy that these flags come to, as `saggar run` would find it."""
    return effective(
        args.policy,
        os.environ,
        os.getcwd(),
        allow=args.allow,
        tier=args.tier,
        workspace=args.workspace,
        env=args.env,
        timeout=args.timeout,
    )


def _show(args: argparse.Namespace) -> int:
    from saggar.policy.lint import lint
    from saggar.policy.show import to_json, to_toml

    policy = policy_of(args)
    warnings = lint(policy)
    if args.json:
        shown = to_json(policy) | {"warnings": [{"path": w.path, "message": w.message} for w in warnings]}
        json.dump(shown, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(to_toml(policy))
        _print_warnings(policy, warnings)
    return 0


def _check(args: argparse.Namespace) -> int:
    from saggar.policy.file_host import read
    from saggar.policy.lint import lint

    warnings: list[Finding] = []
    policy = None
    try:
        source = read(args.file)
    except UsageError as e:
        problems = [e]
    else:
        problems = check(source, args.file)
        if not problems:
            policy = parse(source, args.file)
            warnings = lint(policy)
            from saggar.cli.tools_check import grammar_problems

            problems = sorted([*_terms(policy, args.file), *grammar_problems(policy, args.file)], key=lambda p: p.line)
    if args.json:
        report = {
            "ok": not problems,
            "problems": [{"line": p.line, "message": p.message, "hint": p.hint} for p in problems],
            "warnings": [{"path": w.path, "message": w.message} for w in warnings],
        }
        json.dump(report, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        for problem in problems:
            sys.stderr.write(f"{problem}\n")
        if policy is not None and not problems:
            _print_warnings(policy, warnings)
            sys.stdout.write(f"{args.file}: sound; host rules: {len(policy.egress.allow)}, warnings: {len(warnings)}\n")
    return 2 if problems else 0


def _terms(policy: Policy, file: str) -> list[UsageError]:
    """What is wrong with the `http` of entries: the egress wall says, as it will before a run."""
    if not any(rule.http for rule in policy.egress.allow):
        return []
    from saggar.egress.terms import compile_policy
    from saggar.policy.model import EgressPolicy

    found: list[UsageError] = []
    singles = [(f"egress.allow[{i}].http", EgressPolicy(allow=(rule,))) for i, rule in enumerate(policy.egress.allow)]
    for path, egress in [*singles, ("egress.budget", policy.egress)]:
        # all together only once each is sound by itself: then what is wrong is between them, or in the budget
        if found and path == "egress.budget":
            break
        try:
            compile_policy(egress, random=os.urandom, read_ca=lambda _: "")
        except UsageError as e:
            origin = policy.origins.get(path)
            found.append(UsageError(e.message, file=file, line=origin.line if origin else 0, hint=e.hint))
    return found


def _print_warnings(policy: Policy, warnings: list[Finding]) -> None:
    for warning in warnings:
        origin = policy.origins.get(warning.path) or policy.origins.get(warning.path.rpartition(".")[0])
        sys.stderr.write(f"{origin or 'default'}: warning: `{warning.path}`: {warning.message}\n")


def _schema(_args: argparse.Namespace) -> int:
    from saggar.policy.schema import document

    json.dump(document(), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0
