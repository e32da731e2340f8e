import pytest

from saggar.isolation.protected import fold, leaves_workspace, matches, protected

PROTECTED = [
    (".git/hooks/pre-commit", "git_hooks"),
    (".git/hooks", "git_hooks"),
    (".git", "git_directory"),
    (".GIT/HOOKS/post-checkout", "git_hooks"),
    (".git/config", "git_config"),
    (".Git/Config.Worktree", "git_config"),
    ("vendor/lib/.git/config", "git_config"),
    (".git/info/attributes", "git_internal"),
    (".git/objects/info/alternates", "git_internal"),
    (".git/worktrees/w/gitdir", "git_internal"),
    (".git/worktrees/w/config.worktree", "git_config"),
    (".git/worktrees/w", "git_internal"),
    (".git/modules/a/b/hooks/update", "git_internal"),
    (".git/modules/a/config", "git_internal"),
    (".git/rebase-merge/git-rebase-todo", "git_internal"),
    (".git/commondir", "git_internal"),
    (".git/index.lock", "git_internal"),
    (".gitmodules", "git_settings"),
    (".g\u200cit/hooks/x", "git_hooks"),
    (".git\u200d", "git_directory"),
    ("\uff0egit/config", "git_config"),
    (".gi\u0074\ufe0f/config", "git_config"),
    (".git /config", "git_config"),
    (".git./config", "git_config"),
    ("GIT~1/config", "git_config"),
    (".git::$INDEX_ALLOCATION/config", "git_config"),
    ("sub/.envrc", "directory_environment"),
    (".vscode/tasks.json", "editor_settings"),
    ("a.code-workspace", "editor_settings"),
    (".IDEA/workspace.xml", "editor_settings"),
    (".claude/settings.json", "agent_settings"),
    ("docs/CLAUDE.md", "agent_settings"),
    ("Agents.md", "agent_settings"),
    (".mcp.json", "agent_settings"),
    (".cursor/mcp.json", "agent_settings"),
    (".cursorrules", "agent_settings"),
    (".github/workflows/ci.yml", "ci_settings"),
    (".github/Copilot-Instructions.md", "agent_settings"),
    ("saggar.toml", "saggar_policy"),
    ("SAGGAR.TOML", "saggar_policy"),
    (".bashrc", "shell_startup"),
    (".ssh/authorized_keys", "credentials"),
    (".config/fish/config.fish", "shell_startup"),
    ("mise.local.toml", "directory_environment"),
    (".mise.local.toml", "directory_environment"),
    ("sub/mise.production.toml", "directory_environment"),
    (".mise/config.toml", "directory_environment"),
    ("mise/config.toml", "directory_environment"),
    (".config/mise/conf.d/x.toml", "directory_environment"),
    (".config/mise.toml", "directory_environment"),
    ("lefthook-local.yml", "git_settings"),
    (".lefthook-local.yaml", "git_settings"),
    (".lefthook.toml", "git_settings"),
    (".pnpmfile.cjs", "build_settings"),
    (".cargo/config", "build_settings"),
    ("crates/a/.Cargo/config.toml", "build_settings"),
    (".mvn/jvm.config", "build_settings"),
    (".mvn/extensions.xml", "build_settings"),
    (".yarn/releases/yarn-4.cjs", "build_settings"),
    (".vim/plugin/x.vim", "editor_settings"),
    (".config/nvim/init.lua", "editor_settings"),
    (".emacs.d/init.el", "editor_settings"),
    (".nvimrc", "editor_settings"),
    (".nvim/x.lua", "editor_settings"),
    (".venv/bin/python", "path_program"),
    (".venv/bin/python3.11", "path_program"),
    (".venv/bin/pip3", "path_program"),
    (".venv/bin/activate.fish", "path_program"),
    (".venv/pyvenv.cfg", "path_program"),
    ("venv/bin/git", "path_program"),
    ("VENV/BIN/Bash", "path_program"),
    ("node_modules/.bin/node", "path_program"),
    ("node_modules/.bin/npm", "path_program"),
    ("packages/a/node_modules/.bin/sh", "path_program"),
    ("node_modules/.bin/env", "path_program"),
]
FREE = [
    "src/main.py", "git/hooks/x", ".gitignore", ".gitattributes", ".github/CODEOWNERS", "hooks/pre-commit", "config",
    ".git/objects/ab/cdef", ".git/refs/heads/main", ".git/HEAD", ".git/index", ".git/logs/HEAD", ".git/COMMIT_EDITMSG",
    ".git/info/exclude", ".git/worktrees/w/HEAD", ".git/worktrees/w/logs/HEAD", ".git/modules/a/b/HEAD",
    ".git/modules/a/objects/ab/cd", "vscode/x", "a.vscode", "saggar.toml.md", "my.cursor", "AGENTS.md.bak", "node_modules/.bin/x",
    "node_modules/.bin/tsc", "node_modules/.bin/node-gyp", "node_modules/.bin/semver", "node_modules/node/bin/node", "node_modules",
    "node_modules/.bin", ".venv/bin/black", "bin/git", "env", "mise", "mise/tasks", "src/mise/config.py", ".cargo/registry",
    "Cargo.toml", "mise.toml.md", "lefthook-local", ".mvn/wrapper/maven-wrapper.properties", "python", "lib/bin/python",
    "\udcff\udcfe", "caf\u00e9/x",
]  # fmt: skip


def raw(path):
    return path.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize(("path", "why"), PROTECTED)
def test_protected(path, why):
    assert protected(raw(path)) == why


@pytest.mark.parametrize("path", FREE)
def test_free(path):
    assert protected(raw(path)) == ""


def test_a_link_inside_a_git_directory_is_never_data():
    assert protected(b".git/HEAD", plain=False) == "git_link"
    assert protected(b".git/objects/ab", plain=False) == "git_link"


@pytest.mark.parametrize(
    ("path", "in_git", "why"),
    [
        ("repo.bundle/config", b"config", "git_config"),
        ("x/hooks/update", b"hooks/update", "git_hooks"),
        ("x/refs/heads/main", b"refs/heads/main", ""),
        ("x", b"", "git_directory"),
        ("x/HEAD", b".git/HEAD", "git_directory"),
    ],
)
def test_bare_repositories(path, in_git, why):
    assert protected(raw(path), in_git=in_git) == why


@pytest.mark.parametrize(
    ("pattern", "path", "covers"),
    [
        ("secrets", "a/secrets/b", True),
        ("secrets", "a/Secrets", True),
        ("secrets", "a/secrets2", False),
        ("*.pem", "a/b.pem", True),
        ("*.pem", "a/b.pem.txt", False),
        ("/top", "top/x", True),
        ("/top", "a/top", False),
        ("infra/*.tf", "infra/main.tf", True),
        ("infra/*.tf", "infra/sub/main.tf", False),
        ("infra/**/*.tf", "infra/a/b/main.tf", True),
        ("infra/**/*.tf", "infra/main.tf", True),
        ("infra/**", "infra", True),
        ("a/*", "a", False),
        ("a/*", "a/b/c", True),
        ("a*b*c", "axxbyyc", True),
        ("a*b*c", "axxc", False),
        ("ab*ba", "aba", False),
        ("**", "anything", True),
    ],
)
def test_policy_patterns(pattern, path, covers):
    assert matches([fold(p) for p in path.split("/")], pattern) is covers
    assert protected(raw(path), extra=(pattern,)) == ("policy_protect" if covers else "")


def test_a_link_in_the_place_of_what_is_above_a_protected_path():
    assert protected(b".github", plain=False) == "agent_settings" or protected(b".github", plain=False) == "ci_settings"
    assert protected(b".github") == ""
    assert protected(b"infra", plain=False, extra=("infra/prod/**",)) == "policy_protect"
    assert protected(b"infra", extra=("infra/prod/**",)) == ""
    assert protected(b"other", plain=False, extra=("infra/prod/**", "**/x", "*.pem")) == ""


@pytest.mark.parametrize("path", [".venv", "venv/bin", "node_modules", "a/node_modules/.bin", ".cargo", "mise"])
def test_a_link_in_the_place_of_a_directory_of_programs_or_settings(path):
    assert protected(raw(path), plain=False) in ("path_program", "build_settings", "directory_environment")
    assert protected(raw(path)) == ""


def test_ordinary_links_of_npm_pass():
    assert protected(b"node_modules/.bin/tsc", plain=False) == ""
    assert protected(b"node_modules/workspace-package", plain=False) == ""


def test_patterns_take_linear_time():
    parts = ["a" * 200] * 200
    assert not matches(parts, "/".join(["**", "*a*a*a*a*b"] * 20))


@pytest.mark.parametrize(
    ("path", "target", "leaves"),
    [
        ("l", "x", False),
        ("l", "./x/y", False),
        ("a/l", "../x", False),
        ("a/b/l", "../../x/y", False),
        ("l", "/etc/passwd", True),
        ("l", "..", True),
        ("l", "../x", True),
        ("a/l", "../../x", True),
        ("a/b/c/l", "d/../../x", True),
        ("l", "", True),
        ("l", "x/..", True),
        ("l", "..x/...", False),
    ],
)
def test_links_out_of_the_workspace(path, target, leaves):
    assert leaves_workspace(raw(path), raw(target)) is leaves
