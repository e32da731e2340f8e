"""`saggar chat --tools MODULE --model NAME --base URL`: a session in the terminal."""

from __future__ import annotations

import argparse
import os
import secrets
import select
import sys
from typing import Any

#: for an answer to a card, as `--wait` has it: a month
MAX_WAIT_S = 30 * 86400


def main(argv: list[str]) -> int:
    """argv[0] is `chat`. Exit code 0 at the end of input."""
    parser = argparse.ArgumentParser(prog="saggar chat", description="Requests, planned and run behind the walls.")
    parser.add_argument("--tools", metavar="MODULE", action="append", required=True, help="a module with the tools")
    parser.add_argument("--model", required=True, help="planner and worker")
    parser.add_argument("--worker-model", default="", help="another model for the worker")
    parser.add_argument("--base", metavar="URL", required=True, help="the endpoint's base URL")
    parser.add_argument("--format", choices=("openai", "anthropic"), default="openai")
    parser.add_argument("--policy", metavar="FILE", help="the task's policy (its [tools] part)")
    parser.add_argument("--model-policy", metavar="FILE", help="the models' cells: one egress rule, the endpoint's")
    parser.add_argument("--key-env", metavar="VARIABLE", default="", help="without --model-policy: the key's variable")
    parser.add_argument("--allow", metavar="CAPABILITY", action="append", help="in place of the policy's capabilities")
    parser.add_argument("--owner", metavar="NAME", action="append", default=[], help="your name in the tools")
    parser.add_argument("--wait", metavar="SECONDS", type=_seconds, default=300.0, help="for an answer to a card")
    parser.add_argument("--yes", action="store_true", help="start each plan without asking")
    parser.add_argument("--resume", metavar="RUN", default="", help="go on with the request that a chat left waiting")
    args = parser.parse_args(argv[1:])
    return _run(args)


def _seconds(text: str) -> float:
    found = float(text)  # argparse tells of a ValueError itself
    if not 0 <= found <= MAX_WAIT_S:
        raise argparse.ArgumentTypeError(f"seconds from 0 to {MAX_WAIT_S}")
    return found


def _run(args: argparse.Namespace) -> int:
    from saggar.cli.explain import load_tools
    from saggar.plan.models import ModelPlanner, ModelWorker
    from saggar.policy.load import refuse_inside
    from saggar.runtime.chat_host import Chat, ChatPerson
    from saggar.runtime.session_host import open_session

    for file in filter(None, (args.policy, args.model_policy)):
        refuse_inside(file, os.getcwd(), named=True)
    chat = Chat(sys.stdout, _line, assume=args.yes)
    if not args.model_policy:
        sys.stderr.write(
            "saggar: the models are called from this process; --model-policy FILE gives each answer a cell\n"
        )
    planner, worker = _model(args, args.model), _model(args, args.worker_model or args.model)
    with open_session(
        args.policy,
        tools=list(load_tools(args.tools).values()),
        planner=ModelPlanner(planner),
        worker=ModelWorker(worker, lambda: secrets.token_hex(8)),
        capabilities=args.allow,
        person=ChatPerson(chat),
        wait_s=args.wait,
        owner=args.owner,
        on_plan=chat.show_plan,
        on_step=chat.show_step,
        resume=args.resume,
    ) as session:
        sys.stdout.write(f"session {session.id}\n")
        return chat.loop(session, resumed=bool(args.resume))


def _model(args: argparse.Namespace, name: str) -> Any:
    """In a cell where a policy for it is given; else from this process, which then holds the key."""
    if args.model_policy:
        from saggar.policy.load import load_file
        from saggar.runtime.model_host import QuarantinedModel

        return QuarantinedModel(args.format, args.base, name, load_file(args.model_policy))
    from saggar.plan.endpoint import key_header
    from saggar.plan.endpoint_host import Endpoint

    headers = key_header(args.format, args.key_env, os.environ)
    return Endpoint(args.format, args.base, name, headers=headers)


def _line(prompt: str) -> str | None:
    if not sys.stdin.isatty():
        try:
            return input(prompt)
        except EOFError:
            return None
    # `input` misses a Ctrl-C that comes between its prompt and its read, and then waits for a line
    sys.stdout.write(prompt)
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], 0.25)[0]:
        pass
    # a terminal gives one line a read
    data = os.read(sys.stdin.fileno(), 1 << 16)
    return data.decode(sys.stdin.encoding or "utf-8", "replace").removesuffix("\n") if data else None
