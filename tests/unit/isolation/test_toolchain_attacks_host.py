"""What a tool chain's walk must not show: a user's data in a shared prefix, and what the workspace points at."""

from __future__ import annotations

import os
import sys

import pytest

from saggar.core.errors import UsageError

sys.path.insert(0, os.path.dirname(__file__))
from toolchain_home import ELF, Home

SECRETS = (
    ".local/share/keyrings/login.keyring",
    ".local/state/saggar/runs/1/audit.jsonl",
    ".local/bin/deploy",
    ".local/lib/private/key",
    ".local/etc/token",
    ".local/src/mine/key",
)


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(str(tmp_path))


def shows(found, path: str) -> bool:
    return any(path == b or path.startswith(b + "/") for b in found.binds)


def node(home: Home, prefix: str) -> None:
    home.file(f"{prefix}/bin/node")
    home.file(f"{prefix}/lib/node_modules/npm/bin/npm-cli.js", "#!/usr/bin/env node\n")
    home.link(f"{prefix}/bin/npm", "../lib/node_modules/npm/bin/npm-cli.js")


def rust(home: Home, prefix: str) -> None:
    for name in ("cargo", "rustc"):
        home.file(f"{prefix}/bin/{name}")
    home.file(f"{prefix}/lib/rustlib/x/libcore.rlib")
    home.file(f"{prefix}/lib/librustc_driver-1a.so")


def ruby(home: Home, prefix: str) -> None:
    home.file(f"{prefix}/bin/ruby")
    home.file(f"{prefix}/lib/ruby/3.2.0/set.rb")


class TestLocal:
    """`~/.local` is where a desktop keeps its data; an installation in it does not open it."""

    @pytest.fixture(autouse=True)
    def _data(self, home: Home) -> None:
        for path in SECRETS:
            home.file(path, "secret")
        home.search = [".local/bin"]

    def check(self, home: Home, found, *needed: str) -> None:
        for path in SECRETS:
            assert not shows(found, f"{home.path}/{path}"), path
        for path in needed:
            assert shows(found, f"{home.path}/{path}"), path

    @pytest.mark.parametrize("program", ["node", "npm", "sh", "make", "env", "bash"])
    def test_node(self, home: Home, program: str) -> None:
        node(home, ".local")
        if program in ("make", "bash"):
            home.file(f"bin/{program}")
            home.search.append("bin")
        found = home.resolve(program)
        self.check(home, found, ".local/bin/node", ".local/lib/node_modules/npm/bin/npm-cli.js")
        assert f"{home.path}/.local/bin" in found.path_entries

    @pytest.mark.parametrize("program", ["python3", "python", "sh"])
    def test_python(self, home: Home, program: str) -> None:
        home.python(".local")
        home.file(".local/lib/python3.9/site-packages/other.py", "", 0o644)
        found = home.resolve(program)
        self.check(home, found, ".local/bin/python3", ".local/bin/python3.11", ".local/lib/python3.11/os.py")
        assert not shows(found, f"{home.path}/.local/lib/python3.9/site-packages/other.py")

    def test_both(self, home: Home) -> None:
        home.python(".local")
        node(home, ".local")
        self.check(home, home.resolve("npm"), ".local/bin/node", ".local/lib/node_modules", ".local/lib/python3.11")

    def test_rust(self, home: Home) -> None:
        rust(home, ".local")
        self.check(
            home, home.resolve("cargo"), ".local/bin/rustc", ".local/lib/rustlib", ".local/lib/librustc_driver-1a.so"
        )

    def test_ruby(self, home: Home) -> None:
        ruby(home, ".local")
        self.check(home, home.resolve("ruby"), ".local/bin/ruby", ".local/lib/ruby")

    def test_an_environment(self, home: Home) -> None:
        base = home.python("py")
        home.venv(".local", base)
        self.check(home, home.resolve("python"), ".local/pyvenv.cfg", "py/bin/python3.11")

    def test_another_program_beside_one_is_one_file(self, home: Home) -> None:
        home.python(".local")
        home.file(".local/bin/rg")
        found = home.resolve("rg")
        self.check(home, found, ".local/bin/rg")

    def test_what_cannot_be_told_apart_is_refused(self, home: Home) -> None:
        home.file(".local/bin/go")
        home.dir(".local/pkg/tool")
        home.file(".local/bin/rg")
        with pytest.raises(UsageError, match="cannot be told"):
            home.resolve("go")
        assert home.resolve("rg").binds == (f"{home.path}/.local/bin/rg",)
        self.check(home, home.resolve("sh"))

    def test_behind_a_link(self, home: Home) -> None:
        node(home, "disk/mine")
        home.file("disk/mine/bin/deploy", "secret")
        os.rename(f"{home.path}/.local", f"{home.path}/old")
        home.link(".local", "disk/mine")
        found = home.resolve("node")
        assert shows(found, f"{home.path}/disk/mine/bin/node")
        assert not shows(found, f"{home.path}/disk/mine/bin/deploy")

    def test_state_marks_such_a_prefix_elsewhere(self, home: Home) -> None:
        node(home, "xdg")
        home.file("xdg/state/k", "secret")
        home.file("xdg/share/app/k", "secret")
        found = home.resolve(f"{home.path}/xdg/bin/node")
        assert not shows(found, f"{home.path}/xdg/state/k")
        assert not shows(found, f"{home.path}/xdg/share/app/k")


class TestSharedPrefix:
    """A prefix that holds more than the installation is shown by name."""

    @pytest.mark.parametrize("beside", ["keys/k", "share/keyrings/k", "notes.txt", "var/db", "envs/other/k", "pkgs/k"])
    def test_what_lies_beside_stays_out(self, home: Home, beside: str) -> None:
        home.python("tools")
        home.file(f"tools/{beside}", "secret", 0o600)
        home.file("tools/share/man/man1/x.1", "", 0o644)
        home.file("tools/etc/app/token", "secret", 0o600)
        found = home.resolve(f"{home.path}/tools/bin/python3")
        assert not shows(found, f"{home.path}/tools/{beside}")
        assert not shows(found, f"{home.path}/tools/etc/app/token")
        for needed in ("bin/python3.11", "lib/python3.11/os.py", "share/man/man1/x.1"):
            assert shows(found, f"{home.path}/tools/{needed}")

    def test_a_link_that_leads_out_is_no_part(self, home: Home) -> None:
        home.python("tools")
        home.file("tools/notes.txt", "")
        home.file("private/k", "secret")
        home.link("tools/include", f"{home.path}/private")
        assert not shows(home.resolve(f"{home.path}/tools/bin/python3"), f"{home.path}/tools/include/k")

    def test_an_environments_share(self, home: Home) -> None:
        base = home.python("py")
        venv = home.venv("project", base)
        home.file("project/share/keyrings/k", "secret", 0o600)
        home.file("project/share/jupyter/runtime/kernel-1.json", "secret", 0o600)
        home.file("project/share/jupyter/kernels/python3/kernel.json", "{}", 0o644)
        found = home.resolve(f"{venv}/bin/python")
        assert not shows(found, f"{venv}/share/keyrings/k")
        assert not shows(found, f"{venv}/share/jupyter/runtime/kernel-1.json")
        assert shows(found, f"{venv}/share/jupyter/kernels/python3/kernel.json")

    def test_a_prefix_of_its_own_is_shown_as_it_is(self, home: Home) -> None:
        prefix = home.python(".local/share/uv/python/cpython-3.11.7-linux-x86_64-gnu")
        home.file(".local/share/uv/python/cpython-3.11.7-linux-x86_64-gnu/share/terminfo/x/xterm", "", 0o644)
        home.file(".local/share/uv/python/cpython-3.11.7-linux-x86_64-gnu/BUILD", "", 0o644)
        assert home.resolve(f"{prefix}/bin/python3").binds == (prefix,)


class TestOutsideHomes:
    def test_a_program_is_one_file(self, home: Home, tmp_path) -> None:
        program = home.file("u/bin/prog")
        home.file("u/keys/k", "secret", 0o600)
        home.env["HOME"] = home.dir("elsewhere")
        for name in ("prog", program):
            found = home.resolve(name, path=f"{home.path}/u/bin:/usr/bin")
            assert found.binds == (program,)

    @pytest.mark.parametrize(
        ("program", "area"),
        [
            ("/opt/x/bin/y", "/opt/x"),
            ("/opt/google/chrome/chrome", "/opt/google"),
            ("/opt/bin/y", ""),
            ("/opt/y", ""),
            ("/opt/lib/y/z", ""),
            ("/srv/x/bin/y", ""),
            ("/data/me/libexec/y", ""),
        ],
    )
    def test_area(self, program: str, area: str) -> None:
        from saggar.isolation.toolchain_layout_host import Broad

        assert Broad("/home/u").area(program) == area

    def test_what_others_may_not_read_is_no_part_of_a_package(self, home: Home) -> None:
        from saggar.isolation.toolchain_parts_host import public_parts

        home.file("x/bin/y")
        home.file("x/keys/k", "secret", 0o600)
        home.file("x/var/db", "", 0o644)
        home.file("x/app.key", "secret", 0o640)
        home.link("x/out", "/etc")
        assert public_parts(f"{home.path}/x") == (f"{home.path}/x/bin",)


class TestWorkspaceLinks:
    """I2, for links to directories: the kernel's walk, component by component."""

    @pytest.fixture(autouse=True)
    def _private(self, home: Home) -> None:
        home.file("private/bin/tool")
        home.file("private/k", "secret")

    @pytest.mark.parametrize(
        ("link", "target", "program"),
        [
            ("work/tools", "private/bin", "./tools/tool"),
            ("work/tools", "private", "./tools/bin/tool"),
            ("work/a/b", "private/bin", "./a/../a/b/tool"),
            ("work/up", "private/bin", "up/tool"),
        ],
    )
    def test_a_directory(self, home: Home, link: str, target: str, program: str) -> None:
        home.link(link, f"{home.path}/{target}")
        with pytest.raises(UsageError, match="does not show"):
            home.resolve(program)

    def test_relative_and_through_another(self, home: Home) -> None:
        home.link("work/one", "two/bin")
        home.link("work/two", "../private")
        with pytest.raises(UsageError, match="does not show"):
            home.resolve("./one/tool")

    def test_from_outside_through_the_workspace_and_out_again(self, home: Home) -> None:
        home.link("work/back", f"{home.path}/private/bin")
        home.link("outside", f"{home.path}/work/back")
        with pytest.raises(UsageError, match="does not show"):
            home.resolve(f"{home.path}/outside/tool")

    def test_on_path(self, home: Home) -> None:
        home.link("work/node_modules/.bin", f"{home.path}/private/bin")
        home.search = ["work/node_modules/.bin"]
        with pytest.raises(UsageError, match="does not show"):
            home.resolve("tool")

    def test_a_link_of_the_callers_own_is_followed(self, home: Home) -> None:
        home.link("mine", f"{home.path}/private/bin")
        assert home.resolve(f"{home.path}/mine/tool").binds == (f"{home.path}/private/bin/tool",)

    def test_a_directory_of_an_installation(self, home: Home) -> None:
        base = home.python(".pyenv/versions/3.11.7")
        home.link("work/py", base)
        assert home.resolve("./py/bin/python3").binds == (base,)

    def test_a_first_line_through_a_link(self, home: Home) -> None:
        home.link("work/tools", f"{home.path}/private/bin")
        home.file("work/run", f"#!{home.path}/work/tools/tool\n")
        assert home.resolve("./run").binds == ()

    def test_dot_dot_goes_up_from_where_the_link_led(self, home: Home) -> None:
        home.dir("work/deep/er")
        home.file("work/bin/tool", "decoy")
        home.link("work/d", f"{home.path}/private/bin")
        home.link("work/run", "d/../bin/tool")  # by text: work/bin/tool
        with pytest.raises(UsageError, match="does not show"):
            home.resolve("./run")

    def test_in_circles(self, home: Home) -> None:
        home.link("work/a", "b")
        home.link("work/b", "a")
        assert home.resolve("./a/tool").argv0 == ""


class TestEnvLines:
    def test_a_private_program_is_not_shown(self, home: Home) -> None:
        deploy = home.file("bin/deploy", "#!/bin/sh\nTOKEN=secret\n")
        home.search = ["bin"]
        for line in ("#!/usr/bin/env deploy", "#!/usr/bin/env -S A=1 deploy x", "#!/usr/bin/env python3"):
            home.file("work/run", f"{line}\n")
            found = home.resolve("./run")
            assert found.argv0 == f"{home.workspace}/run"
            assert not shows(found, deploy)

    def test_nor_one_that_has_an_interpreters_name(self, home: Home) -> None:
        wrapper = home.file("bin/python3", "#!/bin/sh\nTOKEN=secret exec python3\n")
        home.search = ["bin"]
        home.file("work/run", "#!/usr/bin/env python3\n")
        assert not shows(home.resolve("./run"), wrapper)

    @pytest.mark.parametrize("name", ["python3", "node"])
    def test_an_interpreter_of_the_callers_is(self, home: Home, name: str) -> None:
        prefix = home.python(".pyenv/versions/3.11.7")
        node(home, ".nvm/versions/node/v20")
        home.search = [".pyenv/versions/3.11.7/bin", ".nvm/versions/node/v20/bin"]
        home.file("work/run", f"#!/usr/bin/env {name}\n")
        expected = prefix if name == "python3" else f"{home.path}/.nvm/versions/node/v20"
        found = home.resolve("./run")
        assert (found.binds, found.path_entries) == ((expected,), (f"{expected}/bin",))

    def test_another_environment_is_not(self, home: Home) -> None:
        base = home.python("py")
        venv = home.venv("other", base)
        home.search = ["other/bin"]
        home.file("work/run", "#!/usr/bin/env python\n")
        found = home.resolve("./run")
        assert found.binds == (base,)
        assert not shows(found, f"{venv}/pyvenv.cfg")

    def test_a_script_of_the_callers_may_name_any(self, home: Home) -> None:
        home.file("bin/helper")
        home.file("bin/tool", "#!/usr/bin/env helper\n")
        home.search = ["bin"]
        assert home.resolve("tool").binds == (f"{home.path}/bin/tool", f"{home.path}/bin/helper")


class TestVersionFiles:
    """A version file of the workspace chooses an interpreter, never somebody's environment."""

    @pytest.fixture(autouse=True)
    def _pyenv(self, home: Home) -> None:
        self.root = home.dir(".pyenv")
        home.search = [".pyenv/shims"]
        home.file(".pyenv/libexec/pyenv")
        for name in ("python", "tool"):
            home.file(f".pyenv/shims/{name}", "#!/bin/sh\nexit 9\n")
        self.base = home.python(".pyenv/versions/3.11.7")
        home.file(".pyenv/version", "3.11.7\n", 0o644)
        self.venv = home.venv(".pyenv/versions/3.11.7/envs/other", self.base)
        home.file(".pyenv/versions/3.11.7/envs/other/bin/postactivate", "TOKEN=secret\n")
        home.file(".pyenv/versions/3.11.7/envs/other/bin/tool", f"#!{self.venv}/bin/python\n")
        home.link(".pyenv/versions/other", self.venv)

    @pytest.mark.parametrize("program", ["python", "tool"])
    def test_an_environment_is_refused(self, home: Home, program: str) -> None:
        home.file("work/.python-version", "other\n", 0o644)
        with pytest.raises(
            UsageError, match=r"`.python-version` in the workspace chooses the environment `other`"
        ) as info:
            home.resolve(program)
        assert "PYENV_VERSION" in info.value.hint

    def test_also_by_a_link_to_a_file_elsewhere(self, home: Home) -> None:
        home.file("elsewhere", "other\n", 0o644)
        home.link("work/.python-version", f"{home.path}/elsewhere")
        with pytest.raises(UsageError, match="chooses the environment"):
            home.resolve("python")

    def test_for_a_shell_it_is_left_out(self, home: Home) -> None:
        home.file("work/.python-version", "other\n", 0o644)
        found = home.resolve("sh")
        assert not any(shows(found, f"{self.venv}/{p}") for p in ("bin/postactivate", "pyvenv.cfg", "bin/tool"))

    @pytest.mark.parametrize("where", [".python-version", ".pyenv/version", ""])
    def test_the_callers_own_choice_is_not(self, home: Home, where: str) -> None:
        if where:
            home.file(where, "other\n", 0o644)
        else:
            home.env["PYENV_VERSION"] = "other"
        found = home.resolve("python")
        assert shows(found, f"{self.venv}/pyvenv.cfg")
        assert shows(found, f"{self.base}/bin/python3.11")

    def test_the_interpreter_behind_does_not_bring_its_environments(self, home: Home) -> None:
        home.file("work/.python-version", "3.11.7\n", 0o644)
        found = home.resolve("python")
        assert shows(found, f"{self.base}/lib/python3.11/os.py")
        assert not shows(found, f"{self.venv}/bin/postactivate")

    def test_a_version_that_leads_out_of_the_store(self, home: Home) -> None:
        home.file("private/bin/tool", "secret")
        home.link(".pyenv/versions/linked", f"{home.path}/private")
        home.file("work/.python-version", "linked\n", 0o644)
        with pytest.raises(UsageError, match="does not show"):
            home.resolve("tool")

    def test_a_conda_environment(self, home: Home) -> None:
        home.python(".pyenv/versions/conda/envs/data")
        home.link(".pyenv/versions/data", f"{self.root}/versions/conda/envs/data")
        home.file("work/.python-version", "data\n", 0o644)
        with pytest.raises(UsageError, match="chooses the environment `data`"):
            home.resolve("python")

    def test_asdf_programs_are_still_chosen(self, home: Home) -> None:
        home.search = [".asdf/shims"]
        home.file(".asdf/shims/terraform", "#!/usr/bin/env bash\n# asdf-plugin: terraform 1.5.0\n")
        program = home.file(".asdf/installs/terraform/1.5.0/bin/terraform", ELF)
        home.file("work/.tool-versions", "terraform 1.5.0\n", 0o644)
        assert home.resolve("terraform").binds == (program,)
        home.file("work/run", "#!/usr/bin/env terraform\n")
        assert home.resolve("./run").binds == ()

    def test_a_stand_in_reached_by_a_link_of_the_workspace(self, home: Home) -> None:
        home.link("work/shims", f"{home.path}/.pyenv/shims")
        os.makedirs(f"{home.workspace}/versions")
        home.link("work/versions/3.11.7", self.venv)
        found = None
        try:
            found = home.resolve("./shims/tool")
        except UsageError:
            return
        assert not shows(found, f"{self.venv}/bin/postactivate")
