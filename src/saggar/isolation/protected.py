"""Paths that a run's changes may not reach unless the user names them: what the host's own tools would execute or obey.

I1  The decision looks at a path's components, compared whole after folding; never at a prefix or substring of the text.
I2  Folding only adds: case, compatibility forms, invisible characters, trailing dots and blanks, NTFS short names. Two names
    that some file system takes for one are one here.
I3  Inside a git directory everything is protected but the data that a commit writes; git reads new files with every release.
I4  Pure; a path that does not exist is judged like one that does.
"""

from __future__ import annotations

from unicodedata import category, normalize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: why -> names, protected wherever they stand (with all below them)
_NAMES: dict[str, tuple[str, ...]] = {
    "git_settings": (".gitmodules", ".gitconfig", ".githooks", ".husky", ".lefthook", "lefthook.yml", "lefthook.yaml",
                     "lefthook.toml", "lefthook.json", ".lefthook-local", ".pre-commit-config.yaml", ".pre-commit-config.yml", ".hg", ".jj"),
    "shell_startup": (".profile", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".zshrc", ".zshenv",
                      ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".mkshrc", ".cshrc", ".tcshrc", ".login", ".logout", ".inputrc",
                      ".xprofile", ".xinitrc", ".xsession", ".pam_environment", ".tmux.conf", ".screenrc", ".gdbinit", ".lldbinit",
                      ".pythonrc", ".pythonstartup"),
    "credentials": (".ssh", ".gnupg", ".netrc", ".aws", ".kube", ".docker", ".pypirc", ".npmrc", ".yarnrc", ".yarnrc.yml"),
    "directory_environment": (".envrc", ".direnv", ".mise.toml", "mise.toml", ".mise", ".miserc.toml", ".tool-versions", ".autoenv", ".autoenv.zsh"),
    "editor_settings": (".vscode", ".idea", ".fleet", ".zed", ".vs", ".nvim.lua", ".nvimrc", ".vimrc", ".exrc", ".lvimrc",
                        ".vim", ".vimrc.local", ".local.vimrc", ".gvimrc", ".ideavimrc", ".nvim", ".emacs", ".emacs.d",
                        ".spacemacs", ".spacemacs.d", ".doom.d", ".helix", ".dir-locals.el", ".dir-locals-2.el", ".devcontainer", ".devcontainer.json", ".sublime", ".nova"),
    "agent_settings": (".claude", "claude.md", "claude.local.md", "agents.md", "agents.override.md", "agent.md", "gemini.md",
                       "qwen.md", "warp.md", ".mcp.json", "mcp.json", ".windsurf", ".windsurfrules", ".cline", ".clinerules",
                       ".roo", ".roorules", ".roomodes", ".codex", ".gemini", ".qwen", ".continue", ".continuerules", ".kiro",
                       ".junie", ".amazonq", ".augment", ".augment-guidelines", ".goosehints", ".goose", ".opencode",
                       "opencode.json", "opencode.jsonc", ".crush", "crush.json", ".crush.json", ".trae", ".rules", ".agents",
                       ".agent", ".aider.conf.yml", ".copilot"),
    "ci_settings": (".gitlab-ci.yml", ".circleci", ".travis.yml", "jenkinsfile", ".buildkite", ".drone.yml", ".woodpecker",
                    ".woodpecker.yml", "azure-pipelines.yml", "bitbucket-pipelines.yml", ".teamcity"),
    "build_settings": (".pnpmfile.cjs", ".pnpmfile.mjs", "bunfig.toml"),
    "saggar_policy": ("saggar.toml", ".saggar", ".saggar.toml"),
}  # fmt: skip

#: as above for names that come in families: one star
_FAMILIES: dict[str, tuple[str, ...]] = {
    "agent_settings": (".cursor*", ".aider*"),
    "editor_settings": ("*.code-workspace", "*.sublime-project"),
    "directory_environment": ("mise.*.toml", ".mise.*.toml", ".miserc.*.toml"),
    "git_settings": ("lefthook-local.*", ".lefthook.*", ".lefthook-local.*"),
}

#: why -> consecutive components, protected wherever they stand
_PAIRS: dict[str, tuple[tuple[str, str], ...]] = {
    "ci_settings": ((".github", "workflows"), (".github", "actions"), (".gitea", "workflows"), (".forgejo", "workflows")),
    "agent_settings": ((".github", "copilot-instructions.md"), (".github", "instructions"), (".github", "prompts"),
                       (".github", "chatmodes"), (".github", "agents"), (".github", "hooks")),
    "shell_startup": ((".config", "fish"), (".config", "autostart"), (".config", "systemd"), (".config", "git"),
                      (".local", "bin")),
    "directory_environment": ((".config", "mise"), ("mise", "config.toml"), ("mise", "config.local.toml"), ("mise", "conf.d")),
    "editor_settings": ((".config", "nvim"), (".config", "vim"), (".config", "emacs"), (".config", "doom"), (".config", "helix")),
    "build_settings": ((".cargo", "config"), (".cargo", "config.toml"), (".mvn", "jvm.config"), (".mvn", "maven.config"),
                       (".mvn", "extensions.xml"), (".yarn", "plugins"), (".yarn", "releases")),
    "path_program": ((".venv", "pyvenv.cfg"), ("venv", "pyvenv.cfg")),
}  # fmt: skip

#: directories of a project that users put on PATH, and what must not stand there instead of the host's own; `activate` is sourced
_PATH_DIRECTORIES = ((".venv", "bin"), ("venv", "bin"), ("node_modules", ".bin"))
_PATH_PROGRAMS = ("python*", "pypy*", "pip*", "activate*", "node", "nodejs", "npm", "npx", "git", "ssh", "sudo", "sh", "bash",
                  "dash", "zsh", "ksh", "fish", "env", "ls", "cat")  # fmt: skip

_BY_NAME = {name: why for why, names in _NAMES.items() for name in names}
_BY_PAIR = {pair: why for why, pairs in _PAIRS.items() for pair in pairs}
_PAIR_TOPS = {top: why for (top, _), why in _BY_PAIR.items()}

# default-ignorable code points that are no format characters; ext4's casefolding (UTF-8 NFDICF) drops them as well
_IGNORED = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
_SELECTORS = (("\u180b", "\u180f"), ("\ufe00", "\ufe0f"), ("\U000e0000", "\U000e0fff"))


def fold(name: str) -> str:
    """One component as the most forgiving file system would compare it (I2)."""
    if name.isascii():
        folded = name.lower()
    else:
        kept = "".join(c for c in name if not _ignorable(c))
        folded = normalize("NFKC", normalize("NFKC", kept).casefold())
        folded = "".join(c for c in folded if not _ignorable(c))
    # NTFS streams, trailing dots and blanks, and the short name of `.git` (CVE-2014-9390, CVE-2019-1352)
    folded = folded.partition(":")[0].rstrip(" .") or folded
    if folded.startswith("git~") and folded[4:].isdigit():
        return ".git"
    return folded


def _ignorable(c: str) -> bool:
    return category(c) == "Cf" or c in _IGNORED or any(low <= c <= high for low, high in _SELECTORS)


def components(path: bytes) -> list[str]:
    """The folded components of a path."""
    return [fold(part) for part in path.decode("utf-8", "surrogateescape").split("/")]


def protected(path: bytes, *, in_git: bytes | None = None, plain: bool = True, extra: Iterable[str] = ()) -> str:
    """Why `path` is protected (`lower_snake`), or "".

    in_git: the path relative to the git directory that holds it, where the caller knows of one (a bare repository has
    no `.git` in its path). plain: it is a regular file or a directory. extra: the policy's own patterns, see `matches`.
    """
    parts = components(path)
    for i, part in enumerate(parts):
        if part == ".git":
            why = _inside_git(parts[i + 1 :], plain=plain)
            if why:
                return why
        why = (
            _BY_NAME.get(part)
            or _family(part)
            or (_BY_PAIR.get((part, parts[i + 1]), "") if i + 1 < len(parts) else "")
            or _on_path(parts[i : i + 3], plain=plain)
        )
        if why:
            return why
    if not plain:
        # a link in the place of `.github` makes another directory's `workflows` the one that counts
        why = _PAIR_TOPS.get(parts[-1], "")
        if why:
            return why
    if in_git is not None:
        why = _inside_git(components(in_git) if in_git else [], plain=plain)
        if why:
            return why
    return "policy_protect" if any(matches(parts, pattern, link=not plain) for pattern in extra) else ""


def _on_path(parts: list[str], *, plain: bool) -> str:
    """`path_program` for what shadows a program of the host in a directory of PATH, and for a link in that directory's place."""
    for directory in _PATH_DIRECTORIES:
        if tuple(parts[:2]) == directory:
            shadows = len(parts) > 2 and any(_star(parts[2], name) for name in _PATH_PROGRAMS)
            return "path_program" if shadows or (len(parts) == 2 and not plain) else ""
        if parts == [directory[0]] and not plain:
            return "path_program"
    return ""


def _family(part: str) -> str:
    for why, patterns in _FAMILIES.items():
        for pattern in patterns:
            if _star(part, pattern):
                return why
    return ""


def _star(text: str, pattern: str) -> bool:
    """Whether `text` matches a pattern of literal pieces and stars. Linear: each piece is found once, leftmost."""
    head, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    tail = rest.pop()
    if not text.startswith(head) or not text.endswith(tail) or len(text) < len(head) + len(tail):
        return False
    at, end = len(head), len(text) - len(tail)
    for piece in rest:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def matches(parts: list[str], pattern: str, *, link: bool = False) -> bool:
    """Whether a policy pattern covers the folded path `parts`, or a directory above it; for a link also whether the path is
    the beginning of one that the pattern names.

    A pattern without `/` is a name anywhere; with one it starts at the workspace. `*` stays in a component, `**` is any
    number of components.
    """
    wanted = [fold(p) if p not in ("*", "**") else p for p in pattern.strip("/").split("/")]
    if "/" not in pattern.strip("/") and not pattern.startswith("/"):
        return any(_star(part, wanted[0]) for part in parts) if wanted[0] != "**" else True
    # the set of positions in `wanted` reached after each component: no backtracking
    reached = {0}
    for part in ["", *parts]:
        if part:
            reached = {j for i in reached for j in _advance(i, part, wanted)}
        while grown := {i + 1 for i in reached if i < len(wanted) and wanted[i] == "**"} - reached:
            reached |= grown
        if len(wanted) in reached:
            return True
    return link and any(i and wanted[i - 1] != "**" for i in reached)


def _advance(i: int, part: str, wanted: list[str]) -> tuple[int, ...]:
    if i >= len(wanted):
        return (i,)
    if wanted[i] == "**":
        return (i,)
    return (i + 1,) if _star(part, wanted[i]) else ()


# -- git directories ---------------------------------------------------------------------------------------------------

_GIT_FILES = frozenset({
    "head", "orig_head", "fetch_head", "merge_head", "cherry_pick_head", "revert_head", "rebase_head", "auto_merge",
    "merge_msg", "merge_mode", "squash_msg", "commit_editmsg", "tag_editmsg", "index", "packed-refs", "shallow", "gc.log",
})  # fmt: skip
_GIT_TREES = frozenset({"refs", "logs", "lost-found"})
#: what tells git where to look or what to run, at any depth below `modules`
_GIT_ORDERS = frozenset({"hooks", "config", "config.worktree", "gitdir", "commondir", "alternates", "http-alternates", "sequencer",
                         "rebase-merge", "rebase-apply", "grafts", "attributes", ".git"})  # fmt: skip


def inside_git(path: bytes) -> str:
    """Why a plain file at this path relative to a git directory is protected, or ""."""
    return _inside_git(components(path), plain=True)


def _inside_git(parts: list[str], *, plain: bool) -> str:
    """Why a path relative to a git directory is protected, or "" for the data that commits, merges and fetches write (I3)."""
    if not parts:
        return "git_directory"
    if not plain:
        return "git_link"
    first, rest = parts[0], parts[1:]
    if first == ".git":
        return "git_directory"
    if first in ("hooks", "config", "config.worktree"):
        return "git_hooks" if first == "hooks" else "git_config"
    data = (
        (first in _GIT_FILES and not rest)
        or first in _GIT_TREES
        or (first == "objects" and rest[:2] not in (["info", "alternates"], ["info", "http-alternates"]))
        or (first == "info" and rest in ([], ["exclude"], ["refs"]))
        or (first == "lfs" and rest[:1] in ([], ["objects"], ["tmp"]))
    )
    if data:
        return ""
    if first == "worktrees" and len(rest) >= 1:
        # the entry itself stays protected: its `gitdir` and `commondir` say where git goes
        return _inside_git(rest[1:], plain=plain) if len(rest) > 1 else "git_internal"
    if first == "modules":
        # a submodule's name has any number of components, so its git directory cannot be told from the path alone
        return "git_internal" if _GIT_ORDERS.intersection(rest) else ""
    return "git_internal"


def leaves_workspace(path: bytes, target: bytes) -> bool:
    """Whether a symbolic link at `path` may lead out of the workspace.

    Only leading `..` no deeper than the link are taken for inside: after a name, `..` goes up from wherever that name,
    a link perhaps, leads to.
    """
    if target.startswith(b"/") or not target:
        return True
    depth = path.count(b"/")
    named = False
    for part in target.split(b"/"):
        if part in (b"", b"."):
            continue
        if part != b"..":
            named = True
            continue
        depth -= 1
        if named or depth < 0:
            return True
    return False
