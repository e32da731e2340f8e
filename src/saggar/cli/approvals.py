"""`saggar approvals`: what waits for a person, and the person's answer.

Goes to the session's socket while the session lives, to its book of approvals afterwards: an answer to a parked run
waits there for the run to come back.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
from dataclasses import replace
from time import time

from saggar.approval.book import Entry
from saggar.approval.numbers import numbers
from saggar.approval.remember import remembered
from saggar.approval.show import card
from saggar.approval.socket_host import NAME, send_answer
from saggar.approval.store_host import FILE, Store
from saggar.core.approval import Answer, Question, ReviewerClass, Scope
from saggar.core.errors import UsageError
from saggar.isolation.state_host import open_state
from saggar.policy.values import duration


def main(argv: list[str]) -> int:
    """argv[0] is `approvals`."""
    args = _parser().parse_args(argv[1:])
    books = _books(args.dir)
    if args.action == "list":
        return _list(books, as_json=args.json)
    if args.action == "numbers":
        return _numbers(books, as_json=args.json)
    store, ident = _find(books, args.id)
    question = _question(store, ident)
    if args.action == "show":
        print(json.dumps(question.to_json(), indent=2) if args.json else card(question))
        return 0
    if args.action == "deny":
        return _answer(store, [question], Answer("denied"))
    return _approve(store, question, args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="saggar approvals", description="Review the calls that wait for a person.")
    parser.add_argument("--dir", metavar="DIR", help="a session's directory, in place of all kept runs")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, about in (("list", "what waits"), ("numbers", "how approval is going"), ("show", "one question's card")):
        action = actions.add_parser(name, help=about)
        action.add_argument("--json", action="store_true", help="print JSON")
        if name == "show":
            action.add_argument("id", metavar="ID")
    deny = actions.add_parser("deny", help="refuse a call")
    deny.add_argument("id", metavar="ID")
    approve = actions.add_parser("approve", help="allow a call, this once unless said otherwise")
    approve.add_argument("id", metavar="ID")
    how = approve.add_mutually_exclusive_group()
    how.add_argument("--times", metavar="N", type=int, help="this call, N times in all")
    how.add_argument("--template", action="store_true", help="this call with any value of the shown argument")
    how.add_argument("--task", action="store_true", help="every call of this tool in this task")
    approve.add_argument("--for", metavar="TIME", dest="life", help="how long it holds, such as `10m`")
    approve.add_argument("--batch", action="store_true", help="every waiting call of the same tool and template")
    approve.add_argument(
        "--remember",
        metavar="ARG=TERM",
        nargs="*",
        help="also print a rule for the policy file, as a diff; ARG=TERM widens one argument",
    )
    return parser


def _books(directory: str | None) -> list[tuple[str, Store]]:
    """(name, book) of each session that has one."""
    if directory is not None:
        path = os.path.join(directory, FILE)
        if not os.path.exists(path):
            raise UsageError(f"`{directory}` has no book of approvals")
        return [(os.path.basename(os.path.abspath(directory)), Store(path))]
    found = []
    state = open_state(os.environ)
    for name in sorted(state.names()):
        path = os.path.join(state.path, "runs", name, FILE)
        if os.path.exists(path):
            found.append((name, Store(path)))
    return found


def _find(books: list[tuple[str, Store]], prefix: str) -> tuple[Store, str]:
    hits = []
    for _, store in books:
        hits += [(store, e.question.id) for e in store.entries() if prefix and e.question.id.startswith(prefix)]
    if len(hits) != 1:
        what = "no question has" if not hits else f"{len(hits)} questions have"
        raise UsageError(f"{what} an id that starts with `{prefix}`", hint="saggar approvals list")
    return hits[0]


def _question(store: Store, ident: str) -> Question:
    entry = store.entry(ident)
    if entry is None:
        raise UsageError(f"there is no question `{ident}`")
    return entry.question


def _list(books: list[tuple[str, Store]], *, as_json: bool) -> int:
    rows = [(name, entry) for name, store in books for entry in store.waiting()]
    if as_json:
        out = [{"session": name, "state": e.state, "question": e.question.to_json()} for name, e in rows]
        print(json.dumps(out, indent=2))
        return 0
    if not rows:
        print("nothing waits")
    for name, e in rows:
        age = int(time() - e.asked)
        print(f"{e.question.id[:10]}  {e.state:<7}  {age:>5}s  {name}  {_line(e)}")
    return 0


def _line(entry: Entry) -> str:
    shown = [
        x.shown or x.raw for x in entry.question.lines if x.role in ("target", "recipient", "destination", "amount")
    ]
    return f"{entry.question.tool} {' '.join(s for s in shown if s != 'null')[:80]}".rstrip()


def _numbers(books: list[tuple[str, Store]], *, as_json: bool) -> int:
    rows = {name: numbers(store.entries(), time()) for name, store in books}
    if as_json:
        print(json.dumps({name: n.to_json() for name, n in rows.items()}, indent=2))
        return 0
    for name, n in rows.items():
        median = "-" if n.median_s is None else f"{n.median_s:.1f}s"
        print(
            f"{name}: {n.asked} asked ({n.last_hour} in the last hour), {n.approved} approved, {n.denied} denied, {n.parked} parked, "
            f"{n.waiting} waiting; median {median}, {n.hasty} under two seconds"
        )
    if not rows:
        print("no session has asked")
    return 0


def _approve(store: Store, question: Question, args: argparse.Namespace) -> int:
    scope: Scope = "template" if args.template else "task" if args.task else "times" if args.times else "once"
    life = duration(args.life) if args.life else 60.0 if scope == "once" else 3600.0
    diff = remembered(question, _patterns(args.remember)) if args.remember is not None else ""
    questions = [e.question for e in store.batch(question.id)] if args.batch else [question]
    code = _answer(store, questions, Answer("approved", scope=scope, uses=args.times or 1, expires_s=life))
    if diff:
        sys.stdout.write(diff)
    return code


def _patterns(pairs: list[str]) -> dict[str, str]:
    out = {}
    for pair in pairs:
        name, equals, term = pair.partition("=")
        if not equals:
            raise UsageError(f"`{pair}` is not ARG=TERM")
        out[name] = term
    return out


def _answer(store: Store, questions: list[Question], answer: Answer) -> int:
    # a person is one who sits at a terminal; what runs without one is a machine, and cannot answer for people
    who: ReviewerClass = "human" if os.isatty(0) else "automatic"
    for question in questions:
        reviewer = f"{_user()} by `saggar approvals`"
        full = replace(answer, args_hash=question.args_hash, reviewer=reviewer, reviewer_class=who)
        path = os.path.join(os.path.dirname(store.path), NAME)
        if not send_answer(path, question.id, full):
            store.answer(question.id, full)
        print(f"{question.id[:10]}  {answer.kind}  {question.tool}")
    return 0


def _user() -> str:
    """The caller's name; in containers a user often has no entry to look it up in."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
