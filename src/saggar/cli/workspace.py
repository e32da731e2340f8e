"""`saggar runs`, `diff`, `apply` and `discard`: what runs changed in their copy-on-write workspaces."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from saggar.cli.show_change import Shower, say
from saggar.core.errors import UsageError
from saggar.isolation.changes import DIRECTORY
from saggar.isolation.shown import shown
from saggar.isolation.state_host import ENDED, open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from saggar.isolation.apply_check import Refusal
    from saggar.isolation.apply_host import Applied, Apply
    from saggar.isolation.changes import Change
    from saggar.isolation.layer_host import Layer
    from saggar.isolation.state_host import RunDir, State

    Report = tuple[Apply, list[Change], list[Refusal], Applied | None]

USAGE = {
    "runs": "usage: saggar runs [--json]\n\nList the runs that are kept, oldest first.\n",
    "diff": """usage: saggar diff [RUN] [--stat | --name-only | --json] [-- PATH...]

Show what a run changed in its workspace (default: the latest run of the current directory), and in the repository that a linked
worktree belongs to. Paths are relative to the workspace; those of such a repository are absolute. Control characters of names and contents are shown as escapes.
""",
    "apply": """usage: saggar apply RUN [PATH...] [--allow-protected PATH]... [--skip-refused]
                    [--overwrite-host-changes] [--after-reboot] [--dry-run] [--json]

Copy a run's changes to its workspace. With a refused path nothing is written, unless --skip-refused.
Paths are relative to the workspace; those of a linked worktree's repository are absolute. Protected paths are what the host's own tools execute or obey.
""",
    "discard": "usage: saggar discard RUN... | --all\n\nThrow away what ended runs left: changes, record and log.\n",
}
DENIED = 3


class Words:
    """A command line after its subcommand: flags that were given, values of repeated ones, and the rest."""

    __slots__ = ("flags", "rest", "values")

    def __init__(self) -> None:
        self.flags: set[str] = set()
        self.values: dict[str, list[str]] = {}
        self.rest: list[str] = []


def parse(args: list[str], *, flags: Iterable[str], valued: Iterable[str] = ()) -> Words:
    """Flags anywhere before `--`. Raises UsageError."""
    words = Words()
    queue = list(args)
    while queue:
        word = queue.pop(0)
        if word == "--":
            words.rest += queue
            break
        name, equals, value = word.partition("=")
        if name in valued:
            if not equals:
                if not queue:
                    raise UsageError(f"`{word}` needs a value")
                value = queue.pop(0)
            words.values.setdefault(name, []).append(value)
        elif word in flags:
            words.flags.add(word)
        elif word.startswith("-") and word != "-":
            raise UsageError(f"unknown option `{shown(word)}`")
        else:
            words.rest.append(word)
    return words


def main(argv: list[str]) -> int:
    """Run one of the four; the exit code. Raises SaggarError."""
    name, args = argv[0], argv[1:]
    if args[:1] in (["--help"], ["-h"]):
        sys.stdout.write(USAGE[name])
        return 0
    try:
        with ExitStack() as held:
            state = open_state(os.environ)
            held.callback(state.close)
            return {"runs": _runs, "diff": _diff, "apply": _apply, "discard": _discard}[name](state, args, held)
    except BrokenPipeError:
        raise
    except OSError as e:
        where = f" `{shown(os.fsdecode(e.filename))}`" if isinstance(e.filename, (str, bytes)) else ""
        sys.stderr.write(f"saggar: {name}:{where} {(e.strerror or str(e)).lower()}\n")
        return 1


def _json(value: Any) -> None:
    from json import dumps

    say(dumps(value, indent=2, ensure_ascii=True))


# -- runs --------------------------------------------------------------------------------------------------------------


def _runs(state: State, args: list[str], _held: ExitStack) -> int:
    words = parse(args, flags=("--json",))
    rows = [_row(run) for run in state.runs()]
    if "--json" in words.flags:
        _json(rows)
        return 0
    for row in rows:
        kept = "changes kept" if row["changes_kept"] else "applied" if row["applied"] else row["mode"] or "-"
        argv = " ".join(shown(a) for a in row["argv"])
        say(f"{row['id']}  {row['state']:<6}  {row['cause']:<16}  {kept:<14}  {shown(row['workspace'])}  {argv[:100]}")
    return 0


def _row(run: RunDir) -> dict[str, Any]:
    meta = run.meta()
    try:
        ended = run.state() == ENDED
    except OSError:
        ended = True
    alive = not run.acquire()
    return {
        "id": run.id,
        "state": "alive" if alive else "ended" if ended else "dead",
        "cause": meta.get("cause") or "-",
        "mode": meta.get("mode", ""),
        "workspace": meta.get("workspace", ""),
        "argv": meta.get("argv", []),
        "started": meta.get("started"),
        "ended": meta.get("ended"),
        "applied": bool(meta.get("applied")),
        "changes_kept": _has_changes(run),
    }


def _has_changes(run: RunDir) -> bool:
    from saggar.isolation.workspace_scan_host import REPOSITORY

    for name in ("layer/upper", f"layer/{REPOSITORY}/upper"):
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=run.fd)
        except OSError:
            continue
        try:
            if os.listdir(fd):
                return True
        finally:
            os.close(fd)
    return False


# -- diff --------------------------------------------------------------------------------------------------------------


def _latest(state: State, cwd: str) -> RunDir:
    """The latest run whose workspace is `cwd` or above it."""
    for run in state.runs(latest_first=True):
        meta = run.meta()
        path = meta.get("workspace", "")
        if meta.get("mode") == "copy-on-write" and path and (cwd == path or cwd.startswith(path.rstrip("/") + "/")):
            return state.open_run(run.id)
    raise UsageError("no run of this directory is kept", hint="`saggar runs` lists them; `saggar diff RUN` shows one")


def _diff(state: State, args: list[str], held: ExitStack) -> int:
    from saggar.cli.workspace_repository import diff as repository_diff
    from saggar.isolation.apply_check import below
    from saggar.isolation.layer_host import open_layer, open_repository_layer

    queue, dashes, after = (args, [], []) if "--" not in args else _split(args)
    words = parse(queue, flags=("--stat", "--name-only", "--json"))
    if len(words.rest) > 1 and not dashes:
        raise UsageError("more than one run was given", hint="paths stand after `--`")
    run = state.open_run(words.rest[0]) if words.rest else _latest(state, os.getcwd())
    held.callback(run.close)
    layer = open_layer(run)
    held.callback(layer.close)
    repository = open_repository_layer(run)
    if repository is not None:
        held.callback(repository.close)
    tops, inner = divide(after, run)
    alive = not run.acquire()
    if alive and run.meta().get("layer") == "memory":
        raise UsageError(f"the run `{run.id}` is alive and keeps its changes in memory", hint="wait for its end")

    def wanted(change: Change) -> bool:
        return not after or below(change.path, tops)

    other = None
    if words.flags & {"--stat", "--name-only", "--json"}:
        changes = [c for c in layer.changes() if wanted(c)]
        if repository is not None:
            other = repository_diff(run, repository, inner if after else None, words.flags)
        _listed(run, layer, changes, words.flags, other)
    else:
        shower = Shower(wanted)
        layer.changes(shower.visit)
        shower.end()
        if repository is not None:
            repository_diff(run, repository, inner if after else None, words.flags)
    if "--json" not in words.flags:
        for path, reason in layer.refused:
            sys.stderr.write(f"saggar: `{shown(path)}` cannot be applied: {reason}\n")
    return 0


def _split(args: list[str]) -> tuple[list[str], list[str], list[str]]:
    at = args.index("--")
    return args[:at], ["--"], args[at + 1 :]


def _listed(
    run: RunDir, layer: Layer, changes: list[Change], flags: set[str], repository: dict[str, Any] | None
) -> None:
    """repository: the section of a linked one, for `--json`; the other forms print it after this one."""
    from saggar.isolation.changes import stat_line

    if "--json" in flags:
        refused = [{"path": shown(p), "reason": why} for p, why in layer.refused]
        section = {"repository": repository} if repository is not None else {}
        _json({"run": run.id, "changes": [c.to_json() for c in changes], "refused": refused, **section})
        return
    for change in changes:
        say(shown(change.path) if "--name-only" in flags else stat_line(change))
    if "--stat" in flags:
        say(f"{len(changes)} paths changed")
    for line in (repository or {}).get("lines", ()):
        say(line)


# -- apply -------------------------------------------------------------------------------------------------------------


def _relative(path: str, run: RunDir) -> bytes:
    """A path of the command line relative to the workspace. Raises UsageError."""
    workspace = str(run.meta().get("workspace", ""))
    if path.startswith("/"):
        normal = os.path.normpath(path)
        top = workspace.rstrip("/") + "/"
        if normal == workspace:
            return b""
        if not normal.startswith(top):
            raise UsageError(f"`{shown(path)}` is outside the workspace `{shown(workspace)}`")
        return os.fsencode(normal[len(top) :])
    normal = os.path.normpath(path)
    if normal == "." or not path:
        return b""
    if normal == ".." or normal.startswith("../"):
        raise UsageError(f"`{shown(path)}` is outside the workspace", hint="paths are relative to the workspace")
    return os.fsencode(normal)


def divide(paths: list[str], run: RunDir) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Paths of the command line: those of the workspace, and those of its linked repository. Raises UsageError."""
    top = str(run.meta().get("repository", ""))
    ours, inner = [], []
    for path in paths:
        normal = os.path.normpath(path)
        if top and (normal + "/").startswith(top + "/"):
            inner.append(os.fsencode(normal[len(top) + 1 :]))
        else:
            ours.append(_relative(path, run))
    return tuple(ours), tuple(inner)


def _apply(state: State, args: list[str], held: ExitStack) -> int:
    from saggar.audit.sink_host import AuditLog
    from saggar.isolation.apply_open_host import open_apply
    from saggar.isolation.repository_apply_host import open_repository_apply

    words = parse(
        args,
        flags=("--skip-refused", "--overwrite-host-changes", "--after-reboot", "--dry-run", "--json"),
        valued=("--allow-protected",),
    )
    if not words.rest:
        raise UsageError("no run was given", hint="saggar apply RUN [PATH...]; `saggar runs` lists them")
    run = state.open_run(words.rest[0])
    held.callback(run.close)
    paths, inner = divide(words.rest[1:], run)
    allowed, inner_allowed = divide(words.values.get("--allow-protected", []), run)
    if b"" in (*allowed, *inner_allowed):
        raise UsageError("`--allow-protected` needs a path below the workspace", hint="name what you looked at")
    audit = AuditLog(f"{run.path}/audit.jsonl", run.id)
    held.callback(audit.close)
    apply = open_apply(
        run,
        audit,
        allowed=allowed,
        overwrite="--overwrite-host-changes" in words.flags,
        other_boot="--after-reboot" in words.flags,
    )
    held.callback(apply.layer.close)
    everything = not words.rest[1:]
    repository = open_repository_apply(apply, allowed=inner_allowed)
    parts: list[tuple[Apply, tuple[bytes, ...]]] = []
    if everything or paths:
        parts.append((apply, _below_top(paths)))
    if repository is not None:
        held.callback(repository.layer.close)
        if everything or inner:
            # what a commit refers to is there before the commit is
            parts.append((repository, _below_top(inner)))
    return _apply_parts(run, parts, words.flags, everything=everything)


def _below_top(paths: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The paths that `Apply.plan` is asked for: none, which is all, where the top itself is among them."""
    return () if b"" in paths else paths


def _apply_parts(
    run: RunDir, parts: list[tuple[Apply, tuple[bytes, ...]]], flags: set[str], *, everything: bool
) -> int:
    """The workspace's part and the linked repository's, as one: with a refusal in either none is written."""
    reports: list[Report] = []
    skip = "--skip-refused" in flags
    if "--dry-run" in flags:
        reports = [(part, *part.plan(paths), None) for part, paths in parts]
        return _report(run, reports, flags, "would be written")
    hold = len(parts) > 1 and not skip and any(part.plan(paths)[1] for part, paths in parts)
    complete = everything
    for part, paths in parts:
        done = part.write(paths, skip_refused=skip, hold=hold)
        complete = complete and done.complete
        reports.append((part, done.written, done.refused, done))
        # what was not written here is what the next part refers to
        hold = hold or done.failed is not None
    if complete:
        _finish(run)
    return _report(run, reports, flags, "written")


def _finish(run: RunDir) -> None:
    """All changes are on the host: the layer has nothing more to say. The record and the log stay until they expire."""
    from saggar.isolation.discard_host import remove_tree

    run.update(applied=True)
    remove_tree("layer", run.fd)


def _report(run: RunDir, reports: list[Report], flags: set[str], word: str) -> int:
    """Say how it went; the exit code. Each report: the part, its changes, what it refused, and how it ended (None: it was only asked)."""
    code = max((_code(refused, done) for _, _, refused, done in reports), default=0)
    if "--json" in flags:
        sections = [_section(*report) for report in reports]
        named = [s for s, (part, *_) in zip(sections, reports, strict=True) if part.label]
        plain = [s for s, (part, *_) in zip(sections, reports, strict=True) if not part.label]
        own = plain[0] if plain else _section(None, [], [], None)
        complete = all(s["complete"] for s in sections)
        section = {"repository": named[0]} if named else {}
        _json({"run": run.id, **own, **section, "complete": complete})
        return code
    for part, changes, _, _ in reports:
        _print_changes(part.label, changes)
    for part, _, refused, done in reports:
        for item, more in _gathered(refused):
            beneath = f", with {more} path{'s' * (more > 1)} in it" if more else ""
            hint = f" ({item.hint})" if item.hint else ""
            sys.stderr.write(f"saggar: refused `{shown(part.label + item.path)}`: {item.reason}{beneath}{hint}\n")
        if done is not None and done.failed is not None:
            path, why = done.failed
            sys.stderr.write(
                f"saggar: `{shown(part.label + path)}` could not be written: {why.lower()}; apply again to go on\n"
            )
    written = sum(len(changes) for _, changes, _, _ in reports)
    left = sum(len(refused) for _, _, refused, _ in reports)
    remedy = " (name paths to apply, or give `--skip-refused`)" if left and not written and word == "written" else ""
    say(f"{written} paths {word}" + (f", {left} refused{remedy}" if left else ""))
    return code


def _code(refused: list[Refusal], done: Applied | None) -> int:
    return DENIED if refused else 1 if done is not None and done.failed is not None else 0


def _print_changes(label: bytes, changes: list[Change]) -> None:
    """One line for each; of a repository's objects their number, since nobody reads them."""
    from saggar.isolation.changes import stat_line

    objects = 0
    if label and changes:
        say(f"in the repository {shown(label[:-1])}:")
    for change in changes:
        if label and change.path.split(b"/", 1)[0] == b"objects":
            objects += change.after is not None and change.after.kind != DIRECTORY
            continue
        say(stat_line(change))
    if objects:
        say(f"A {objects} object{'s' * (objects > 1)} of git's")


def _section(part: Apply | None, changes: list[Change], refused: list[Refusal], done: Applied | None) -> dict[str, Any]:
    label = part.label if part is not None else b""
    where = {"path": shown(label[:-1])} if label else {}
    listed = [c.to_json() for c in changes]
    return {
        **where,
        "written": listed if done is not None else [],
        "planned": listed if done is None else [],
        "refused": [{"path": shown(label + r.path), "reason": r.reason, "hint": r.hint} for r in refused],
        "failed": {"path": shown(label + done.failed[0]), "error": done.failed[1]} if done and done.failed else None,
        "complete": done.complete if done is not None else False,
    }


def _gathered(refused: list[Refusal]) -> list[tuple[Refusal, int]]:
    """Each refusal with the number of those that lie in it for the same reason and are not said on their own: a cloned repository
    is a few lines and not fifty."""
    tops: dict[tuple[bytes, str], int] = {}
    lines: list[tuple[Refusal, int]] = []
    for item in sorted(refused, key=lambda r: r.path):
        above = item.path.rpartition(b"/")[0]
        at = tops.get((above, item.reason))
        if at is None:
            at = len(lines)
            lines.append((item, 0))
        else:
            lines[at] = (lines[at][0], lines[at][1] + 1)
        tops[item.path, item.reason] = at
    return lines


# -- discard -----------------------------------------------------------------------------------------------------------


def _discard(state: State, args: list[str], held: ExitStack) -> int:
    from saggar.isolation.apply_open_host import clean_up

    words = parse(args, flags=("--all",))
    if ("--all" in words.flags) == bool(words.rest):
        raise UsageError("give runs, or `--all`", hint="`saggar runs` lists them")
    code = gone = 0
    for word in state.names() if "--all" in words.flags else words.rest:
        run = state.open_run(word)
        held.callback(run.close)
        if run.acquire():
            clean_up(run)
        if state.discard(run):
            gone += 1
        else:
            sys.stderr.write(f"saggar: the run `{run.id}` is still alive\n")
            code = DENIED
        run.close()
    say(f"{gone} runs discarded")
    return code
