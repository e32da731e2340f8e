"""Tool chains laid out as their installers lay them, in a made-up home; nothing is run."""

from __future__ import annotations

import os
import sys

import pytest

from saggar.core.errors import UsageError

sys.path.insert(0, os.path.dirname(__file__))
from toolchain_home import Home


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(str(tmp_path))


def test_a_system_program_needs_nothing(home: Home) -> None:
    found = home.resolve("ls")
    assert (found.argv0, found.binds, found.path_entries, found.env) == ("ls", (), (), {})


def test_a_missing_program(home: Home) -> None:
    assert home.resolve("no-such-program").argv0 == ""
    assert home.resolve("./no-such-program").argv0 == ""


def test_a_file_that_is_not_executable_is_passed_over(home: Home) -> None:
    home.search = ["a", "b"]
    home.file("a/tool", mode=0o644)
    real = home.file("b/tool")
    assert home.resolve("tool").binds == (real,)


class TestPyenv:
    @pytest.fixture(autouse=True)
    def _installed(self, home: Home) -> None:
        self.root = home.dir(".pyenv")
        home.search = [".pyenv/shims"]
        home.file(".pyenv/libexec/pyenv")
        for version in ("3.9.2", "3.11.7", "3.11.10", "3.12.1"):
            home.python(f".pyenv/versions/{version}", version.rpartition(".")[0])
        for name in ("python", "python3", "pip"):
            home.file(f".pyenv/shims/{name}", "#!/bin/sh\nexit 9\n")
        home.file(".pyenv/version", "3.11.7\n", 0o644)

    def test_the_global_version(self, home: Home) -> None:
        found = home.resolve("python3")
        assert found.argv0 == f"{self.root}/versions/3.11.7/bin/python3"
        assert found.binds == (f"{self.root}/versions/3.11.7",)
        assert found.path_entries == (f"{self.root}/versions/3.11.7/bin",)
        assert "pyenv 3.11.7 (the global version)" in found.notes[0]

    def test_a_project_names_one(self, home: Home) -> None:
        home.file("work/.python-version", "# ours\n3.9.2\n", 0o644)
        assert home.resolve("python").binds == (f"{self.root}/versions/3.9.2",)

    def test_a_stem_is_the_newest(self, home: Home) -> None:
        home.file("work/.python-version", "3.11\n", 0o644)
        assert home.resolve("python").binds == (f"{self.root}/versions/3.11.10",)

    def test_the_variable_wins(self, home: Home) -> None:
        home.file("work/.python-version", "3.9.2\n", 0o644)
        home.env["PYENV_VERSION"] = "3.12.1"
        assert home.resolve("python").binds == (f"{self.root}/versions/3.12.1",)

    def test_system_passes_on(self, home: Home) -> None:
        home.env["PYENV_VERSION"] = "system"
        assert home.resolve("python3").binds == ()

    def test_a_version_that_is_not_installed(self, home: Home) -> None:
        home.env["PYENV_VERSION"] = "2.7"
        with pytest.raises(UsageError, match=r"pyenv has no `python` for `2.7`") as info:
            home.resolve("python")
        assert "3.9.2" in info.value.hint

    @pytest.mark.parametrize("version", ["../../secret", "/etc", "..", ".", "a/b"])
    def test_a_project_cannot_lead_elsewhere(self, home: Home, version: str) -> None:
        home.python("secret")
        home.file("work/.python-version", version, 0o644)
        with pytest.raises(UsageError, match="pyenv has no"):
            home.resolve("python")


class TestVenv:
    def test_inside_the_workspace_with_its_base_elsewhere(self, home: Home) -> None:
        base = home.python(".pyenv/versions/3.11.7")
        venv = home.venv("work/.venv", base)
        found = home.resolve(".venv/bin/python")
        assert found.argv0 == f"{venv}/bin/python"
        assert found.binds == (base,)
        assert found.path_entries == ()

    def test_by_name_when_activated(self, home: Home) -> None:
        base = home.python(".local/share/uv/python/cpython-3.11.7-linux-x86_64-gnu")
        venv = home.venv("work/.venv", base)
        home.search = ["work/.venv/bin"]
        found = home.resolve("python")
        assert (found.argv0, found.binds, found.path_entries) == (f"{venv}/bin/python", (base,), (f"{venv}/bin",))

    def test_outside_shows_its_own_parts_only(self, home: Home) -> None:
        base = home.python(".pyenv/versions/3.11.7")
        venv = home.venv("project", base)
        home.file("project/secrets.txt", "x", 0o600)
        found = home.resolve(f"{venv}/bin/python")
        assert f"{venv}/bin" in found.binds
        assert f"{venv}/pyvenv.cfg" in found.binds
        assert base in found.binds
        assert venv not in found.binds
        assert not any("secrets" in b for b in found.binds)

    def test_a_script_of_it(self, home: Home) -> None:
        base = home.python(".pyenv/versions/3.11.7")
        venv = home.venv("work/.venv", base)
        home.file("work/.venv/bin/pip", f"#!{venv}/bin/python\nimport sys\n")
        found = home.resolve(".venv/bin/pip")
        assert (found.argv0, found.binds) == (f"{venv}/bin/pip", (base,))

    def test_a_script_with_the_long_first_line(self, home: Home) -> None:
        base = home.python(".pyenv/versions/3.11.7")
        venv = home.venv("work/.venv", base)
        home.file("work/.venv/bin/pip", f"#!/bin/sh\n'''exec' \"{venv}/bin/python\" \"$0\" \"$@\"\n' '''\n")
        assert home.resolve(".venv/bin/pip").binds == (base,)

    def test_a_pipx_tool(self, home: Home) -> None:
        base = home.python(".pyenv/versions/3.11.7")
        venv = home.venv(".local/share/pipx/venvs/black", base)
        script = home.file(".local/share/pipx/venvs/black/bin/black", f"#!{venv}/bin/python\n")
        home.link(".local/bin/black", script)
        home.search = [".local/bin"]
        found = home.resolve("black")
        assert found.argv0 == script
        assert base in found.binds
        assert not any(b in (f"{home.path}/.local", f"{home.path}/.local/bin") for b in found.binds)

    def test_its_secrets_stay_out(self, home: Home) -> None:
        base = home.python("py")
        home.file("py/pip.conf", "[global]\nindex-url=https://u:p@x.test/\n", 0o644)
        home.file("py/etc/npmrc", "//x.test/:_authToken=1\n", 0o644)
        home.file("py/etc/fonts", "", 0o644)
        found = home.resolve(f"{base}/bin/python")
        assert base not in found.binds
        assert f"{base}/bin" in found.binds
        assert f"{base}/etc/fonts" in found.binds
        assert not any(os.path.basename(b) in ("pip.conf", "npmrc", "etc") for b in found.binds)

    def test_a_home_that_is_an_environment_is_refused(self, home: Home) -> None:
        base = home.python("py")
        home.venv("", base)
        with pytest.raises(UsageError, match="home directory"):
            home.resolve(f"{home.path}/bin/python")


class TestWorkspaceCannotNameTheHost:
    """I2: what the workspace holds leads to known installations only."""

    def test_a_link_to_a_private_program(self, home: Home) -> None:
        home.file("private/bin/tool")
        home.link("work/run", f"{home.path}/private/bin/tool")
        with pytest.raises(UsageError, match="does not show"):
            home.resolve("./run")

    def test_a_first_line_that_names_one(self, home: Home) -> None:
        private = home.file("private/tool")
        home.file("work/run", f"#!{private}\n")
        assert home.resolve("./run").binds == ()

    def test_another_projects_environment(self, home: Home) -> None:
        base = home.python("py")
        other = home.venv("other", base)
        home.link("work/python", f"{other}/bin/python")
        found = home.resolve("./python")
        assert found.binds == (base,)  # the interpreter behind it, nothing of the environment

    def test_a_made_up_pyvenv_cfg(self, home: Home) -> None:
        home.file("private/bin/python3", "secret")
        home.file("work/.venv/pyvenv.cfg", f"home = {home.path}/private/bin\n", 0o644)
        home.dir("work/.venv/bin")
        home.link("work/.venv/bin/python", f"{home.path}/private/bin/python3")
        with pytest.raises(UsageError, match="does not show"):
            home.resolve(".venv/bin/python")

    def test_a_link_in_circles(self, home: Home) -> None:
        home.link("work/a", "b")
        home.link("work/b", "a")
        assert home.resolve("./a").argv0 == ""


class TestNode:
    @pytest.fixture(autouse=True)
    def _nvm(self, home: Home) -> None:
        self.prefix = f"{home.path}/.nvm/versions/node/v20.1.0"
        home.search = [".nvm/versions/node/v20.1.0/bin"]
        home.file(".nvm/versions/node/v20.1.0/bin/node")
        home.file(".nvm/versions/node/v20.1.0/lib/node_modules/npm/bin/npm-cli.js", "#!/usr/bin/env node\n")
        home.link(".nvm/versions/node/v20.1.0/bin/npm", "../lib/node_modules/npm/bin/npm-cli.js")

    def test_node_and_npm(self, home: Home) -> None:
        for name in ("node", "npm"):
            found = home.resolve(name)
            assert found.argv0 == f"{self.prefix}/bin/{name}"
            assert found.binds == (self.prefix,)
            assert found.path_entries == (f"{self.prefix}/bin",)

    def test_a_script_of_the_workspace_finds_node_by_path(self, home: Home) -> None:
        home.file("work/node_modules/.bin/tsc", "#!/usr/bin/env -S node --no-warnings\n")
        found = home.resolve("node_modules/.bin/tsc")
        assert (found.binds, found.path_entries) == ((self.prefix,), (f"{self.prefix}/bin",))

    def test_its_npmrc_stays_out(self, home: Home) -> None:
        home.file(".nvm/versions/node/v20.1.0/etc/npmrc", "//x.test/:_authToken=1\n")
        assert not any("etc" in os.path.basename(b) for b in home.resolve("node").binds)


class TestRust:
    @pytest.fixture(autouse=True)
    def _rustup(self, home: Home) -> None:
        self.root = home.dir(".rustup")
        triple = f"{os.uname().machine}-unknown-linux-gnu"
        self.chain = {}
        for channel in ("stable", "nightly"):
            self.chain[channel] = f"{self.root}/toolchains/{channel}-{triple}"
            home.file(f".rustup/toolchains/{channel}-{triple}/bin/cargo")
            home.file(f".rustup/toolchains/{channel}-{triple}/bin/rustc")
            home.dir(f".rustup/toolchains/{channel}-{triple}/lib/rustlib")
        home.file(".rustup/settings.toml", f'default_toolchain = "stable-{triple}"\n[overrides]\n', 0o644)
        home.file(".cargo/bin/rustup")
        home.link(".cargo/bin/cargo", "rustup")
        home.file(".cargo/bin/rg")
        home.file(".cargo/credentials.toml", "[registry]\ntoken='x'\n", 0o600)
        home.search = [".cargo/bin"]

    def test_the_default(self, home: Home) -> None:
        found = home.resolve("cargo")
        assert found.argv0 == f"{self.chain['stable']}/bin/cargo"
        assert found.binds == (self.chain["stable"],)
        assert found.path_entries == (f"{self.chain['stable']}/bin",)

    def test_a_project_names_a_channel(self, home: Home) -> None:
        home.file("work/rust-toolchain.toml", '[toolchain]\nchannel = "nightly"\n', 0o644)
        assert home.resolve("cargo").binds == (self.chain["nightly"],)

    def test_a_project_cannot_name_a_path(self, home: Home) -> None:
        home.file("private/bin/cargo")
        home.file("work/rust-toolchain.toml", f'[toolchain]\npath = "{home.path}/private"\n', 0o644)
        assert home.resolve("cargo").binds == (self.chain["stable"],)
        home.file("work/rust-toolchain", "../../private", 0o644)
        with pytest.raises(UsageError, match="rustup has no `cargo`"):
            home.resolve("cargo")

    def test_an_installed_program_is_one_file(self, home: Home) -> None:
        found = home.resolve("rg")
        assert found.binds == (f"{home.path}/.cargo/bin/rg",)


def test_sdkman_java(home: Home) -> None:
    prefix = f"{home.path}/.sdkman/candidates/java/17.0.1-tem"
    home.file(".sdkman/candidates/java/17.0.1-tem/bin/java")
    home.file(".sdkman/candidates/java/17.0.1-tem/lib/modules", "", 0o644)
    home.link(".sdkman/candidates/java/current", "17.0.1-tem")
    home.search = [".sdkman/candidates/java/current/bin"]
    found = home.resolve("java")
    assert (found.argv0, found.binds, found.env) == (f"{prefix}/bin/java", (prefix,), {"JAVA_HOME": prefix})


def test_asdf(home: Home) -> None:
    home.file(
        ".asdf/shims/node",
        "#!/usr/bin/env bash\n# asdf-plugin: nodejs 18.0.0\n# asdf-plugin: nodejs 20.1.0\nexec asdf exec node\n",
    )
    for version in ("18.0.0", "20.1.0"):
        home.file(f".asdf/installs/nodejs/{version}/bin/node")
        home.dir(f".asdf/installs/nodejs/{version}/lib/node_modules")
    home.search = [".asdf/shims"]
    with pytest.raises(UsageError, match="asdf has no version"):
        home.resolve("node")
    home.file("work/.tool-versions", "python 3.1\nnodejs 20.1.0 # ours\n", 0o644)
    assert home.resolve("node").binds == (f"{home.path}/.asdf/installs/nodejs/20.1.0",)


def test_a_manager_that_only_itself_can_resolve(home: Home) -> None:
    home.file(".local/bin/mise")
    home.link(".local/share/mise/shims/node", f"{home.path}/.local/bin/mise")
    home.search = [".local/share/mise/shims"]
    with pytest.raises(UsageError, match="stand-in of `mise`") as info:
        home.resolve("node")
    assert "mise which node" in info.value.hint


def test_shown_paths_need_no_bind(home: Home) -> None:
    tool = home.file("tools/bin/x")
    assert home.resolve(tool, shown=(f"{home.path}/tools",)).binds == ()


def test_usr_local_go_is_only_a_path_entry(home: Home) -> None:
    if not os.path.exists("/usr/local/go/bin/go"):
        pytest.skip("no Go in /usr/local/go on this host")
    found = home.resolve("go", path="/usr/local/go/bin:/usr/bin")
    assert (found.argv0, found.binds, found.path_entries) == ("/usr/local/go/bin/go", (), ("/usr/local/go/bin",))


class TestShells:
    """`saggar run -- bash` is run for what is typed into it."""

    def test_the_interpreters_of_path_come_along(self, home: Home) -> None:
        python = home.python(".pyenv/versions/3.11.7")
        home.file(".pyenv/libexec/pyenv")
        home.file(".pyenv/shims/python3", "#!/bin/sh\n")
        home.file(".pyenv/version", "3.11.7", 0o644)
        home.file(".nvm/versions/node/v20/bin/node")
        home.dir(".nvm/versions/node/v20/lib/node_modules")
        home.search = [".nvm/versions/node/v20/bin", ".pyenv/shims"]
        found = home.resolve("sh")
        node = f"{home.path}/.nvm/versions/node/v20"
        assert set(found.binds) == {python, node}
        assert set(found.path_entries) == {f"{python}/bin", f"{node}/bin"}
        assert os.path.basename(found.argv0) == "sh"
        assert home.resolve("ls").binds == ()

    def test_a_single_program_does_not(self, home: Home) -> None:
        home.file("bin/node")
        home.search = ["bin"]
        assert home.resolve("sh").binds == ()

    def test_an_environment_that_is_active_does_when_it_is_the_workspaces(self, home: Home) -> None:
        base = home.python(".pyenv/versions/3.11.7")
        venv = home.venv("work/.venv", base)
        home.search = ["work/.venv/bin"]
        found = home.resolve("sh")
        assert (found.binds, found.path_entries) == ((base,), (f"{venv}/bin",))

    def test_another_environment_that_is_active_is_left_out_and_said(self, home: Home) -> None:
        venv = home.venv("venvs/other", home.python(".pyenv/versions/3.11.7"))
        home.search = ["venvs/other/bin"]
        found = home.resolve("sh")
        assert venv not in found.binds
        assert found.left_out == (
            f"the environment `{venv}`: call its own programs by name, or name it in `isolation.read`",
        )

    def test_what_is_too_broad_is_left_out_and_said(self, home: Home) -> None:
        home.python("")
        home.search = ["bin"]
        found = home.resolve("sh")
        assert found.binds == ()
        assert [text.partition(":")[0] for text in found.left_out] == [
            f"`{home.path}/bin/python3`",
            f"`{home.path}/bin/python`",
        ]

    def test_the_systems_own_need_nothing(self, home: Home) -> None:
        found = home.resolve("sh")
        assert (found.argv0, found.binds, found.path_entries) == ("sh", (), ())
