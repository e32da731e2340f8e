from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saggar.core.errors import ParseError, UsageError
from saggar.isolation import registry, registry_host

URL = "https://index.example.test/simple"


class TestIndex:
    @pytest.mark.parametrize(
        ("url", "host", "port"),
        [
            (URL, "index.example.test", 443),
            ("http://index.example.test:8080/x/", "index.example.test", 8080),
            ("https://INDEX.example.test", "index.example.test", 443),
        ],
    )
    def test_plain(self, url: str, host: str, port: int) -> None:
        found = registry.index_of(url, "pip")
        assert (found.host, found.port) == (host, port)

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("https://user:hunter2@index.example.test/simple", "credentials"),
            ("https://hunter2@index.example.test/simple", "credentials"),
            ("https://:hunter2@index.example.test/simple", "credentials"),
            ("https://index.example.test/simple?token=hunter2", "query or fragment"),
            ("https://index.example.test/simple#hunter2", "query or fragment"),
            ("file:///srv/hunter2", "not reached over HTTP"),
            ("/srv/hunter2", "no scheme"),
            ("", "no scheme"),
            ("https://index.example.test:hunter2/", "does not parse"),
            ("https://[hunter2/", "does not parse"),
            ("http://localhost:3141/root", "loopback"),
            ("http://127.0.0.1:3141/root", "loopback"),
            ("http://[::1]:3141/root", "loopback"),
        ],
    )
    def test_refused_without_repeating_a_secret(self, url: str, reason: str) -> None:
        with pytest.raises(UsageError, match=reason) as info:
            registry.index_of(url, "pip")
        assert "hunter2" not in str(info.value)


class TestPip:
    def test_settings_are_weighed_as_install_weighs_them(self) -> None:
        listing = (
            "global.index-url='https://a.test/'\n"
            "install.index-url='https://b.test/'\n"
            "download.index-url='https://c.test/'\n"
            "global.extra-index-url='\\nhttps://d.test/\\nhttps://e.test/'\n"
            ":env:.trusted-host='a.test'\n"
        )
        found = registry.pip_settings(listing)
        assert found == {
            "index-url": "https://b.test/",
            "extra-index-url": "\nhttps://d.test/\nhttps://e.test/",
            "trusted-host": "a.test",
        }
        assert registry.pip_settings(listing + ":env:.index-url='https://f.test/'\n")["index-url"] == "https://f.test/"

    @pytest.mark.parametrize("listing", ["global.index-url", "global.x=open('/etc/passwd')", "global.x='"])
    def test_another_shape(self, listing: str) -> None:
        with pytest.raises(ParseError):
            registry.pip_settings(listing)

    def test_the_default_is_read_from_the_help(self) -> None:
        text = "  -i, --index-url <url>       Base URL of the Package Index (default\n      https://a.test/simple). This should"
        assert registry.pip_default(text) == "https://a.test/simple"
        with pytest.raises(ParseError):
            registry.pip_default("usage: nothing")

    def test_projection(self) -> None:
        settings = {
            "index-url": URL,
            "extra-index-url": "https://more.test:8443/s",
            "trusted-host": "more.test other.test",
            "find-links": "/srv/wheels",
            "cert": "/etc/ssl/certs/ca.crt",
            "proxy": "http://p.test",
        }
        found = registry.pip_projection(settings, "", {URL: ("files.test:443",)})
        assert found.allow == ("index.example.test:443", "more.test:8443", "files.test:443")
        assert dict(found.env) == {
            "PIP_INDEX_URL": URL,
            "PIP_EXTRA_INDEX_URL": "https://more.test:8443/s",
            "PIP_TRUSTED_HOST": "more.test",
            "PIP_CERT": "/etc/ssl/certs/ca.crt",
        }
        assert [n.split("`")[1] for n in found.notes] == ["find-links", "proxy"]

    def test_a_private_certificate_is_named_not_carried(self) -> None:
        for path in ("/home/u/ca.pem", "/etc/ssl/certs/../../shadow"):
            found = registry.pip_projection({"cert": path}, URL, {})
            assert "PIP_CERT" not in dict(found.env)
            assert "certificates" in found.notes[0]


class TestNpm:
    def test_projection(self) -> None:
        listing = json.dumps(
            {
                "registry": "https://r.test/",
                "@scope:registry": "https://s.test/npm/",
                "cafile": "/etc/ssl/certs/ca.crt",
                "https-proxy": None,
                "//r.test/:_authToken": "hunter2",
            }
        )
        found = registry.npm_projection(listing)
        assert found.allow == ("r.test:443", "s.test:443")
        assert dict(found.env) == {
            "npm_config_registry": "https://r.test/",
            "npm_config_@scope:registry": "https://s.test/npm/",
            "npm_config_cafile": "/etc/ssl/certs/ca.crt",
        }
        assert "hunter2" not in repr(found)

    @pytest.mark.parametrize("listing", ["", "null", "[]", "{}", '{"registry": 1}', "[" * 100_000])
    def test_another_shape(self, listing: str) -> None:
        with pytest.raises(ParseError):
            registry.npm_projection(listing)


class TestLinks:
    def test_hosts_of_files(self) -> None:
        page = (
            b'<a href="https://files.test/a.whl#sha256=1">a</a><a href="../../b.whl">b</a>'
            b'<a href="https://files.test:8443/c">c</a><a href="http://plain.test/d">d</a>'
            b'<a href="https://192.0.2.1/e">e</a><a href="https://[::1]/f">f</a><a href="javascript:x">g</a><a>h</a>'
            b'<a href="https://u:p@x.test:x/">i</a>'
        )
        assert registry.linked_hosts(page, URL + "/pip/") == ("files.test:443", "files.test:8443")

    def test_too_many(self) -> None:
        page = b"".join(b'<a href="https://h%d.test/">x</a>' % n for n in range(9))
        with pytest.raises(ParseError, match="9 hosts"):
            registry.linked_hosts(page, URL)

    @given(st.binary(max_size=300))
    def test_any_page_gives_hosts_or_a_parse_error(self, page: bytes) -> None:
        try:
            assert isinstance(registry.linked_hosts(page, URL), tuple)
        except ParseError:
            pass


@given(st.text(max_size=200))
def test_parsers_give_a_value_or_a_parse_error(text: str) -> None:
    for parse in (registry.pip_settings, registry.pip_default, registry.npm_projection):
        try:
            parse(text)
        except (ParseError, UsageError):
            pass


class TestAskingTheTool:
    """With stand-in tools on PATH; the index is on loopback, so the page is asked for through the module's own door."""

    @pytest.fixture
    def tools(self, tmp_path):
        directory = tmp_path / "bin"
        directory.mkdir()

        def make(name: str, script: str, where=directory) -> dict[str, str]:
            path = where / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
            return {"PATH": f"{where}:/usr/bin:/bin", "HOME": str(tmp_path)}

        return make

    def test_npm_runs_outside_the_workspace(self, tools, tmp_path) -> None:
        env = tools("npm", 'printf \'{"registry":"https://r.test%s/"}\' "$(pwd)"')
        found = registry_host.project("registry:npm", env=env, workspace=str(tmp_path / "ws"))
        assert dict(found.env)["npm_config_registry"] == "https://r.test//"

    def test_a_tool_in_the_workspace_is_not_asked(self, tools, tmp_path) -> None:
        inside = tmp_path / "ws"
        inside.mkdir()
        env = tools("npm", "touch ran; echo '{}'", where=inside) | {"PATH": str(inside)}
        with pytest.raises(UsageError, match="none outside the workspace"):
            registry_host.project("registry:npm", env=env, workspace=str(inside))
        outside = tmp_path / "links"
        outside.mkdir()
        os.symlink(inside / "npm", outside / "npm")
        with pytest.raises(UsageError, match="none outside the workspace"):
            registry_host.project("registry:npm", env=env | {"PATH": str(outside)}, workspace=str(inside))

    @pytest.mark.parametrize("how", ["absolute", "relative", "empty", "link", "link to the program"])
    def test_what_the_tool_looks_up_on_path_is_not_the_workspaces(self, tools, tmp_path, monkeypatch, how) -> None:
        """`#!/usr/bin/env node` of npm itself: a `node` planted before it must not run on the host."""
        inside, ran = tmp_path / "ws" / "node_modules" / ".bin", tmp_path / "ran"
        inside.mkdir(parents=True)
        tools("node", f"touch {ran}; echo '{{}}'", where=inside)
        env = tools("npm", "")
        tool = tmp_path / "bin" / "npm"
        tool.write_text("#!/usr/bin/env node\n")
        tools("node", 'printf \'{"registry":"https://r.test/"}\'')
        monkeypatch.chdir(inside)
        first = {"absolute": str(inside), "relative": ".", "empty": "", "link": str(tmp_path / "l")}.get(how)
        if how == "link":
            os.symlink(inside, tmp_path / "l")
        if first is None:
            (tmp_path / "own").mkdir()
            os.symlink(inside / "node", tmp_path / "own" / "node")
            with pytest.raises(UsageError, match="leads into the workspace"):
                registry_host.project(
                    "registry:npm", env=env | {"PATH": f"{tmp_path}/own:{env['PATH']}"}, workspace=str(tmp_path / "ws")
                )
        else:
            found = registry_host.project(
                "registry:npm", env=env | {"PATH": f"{first}:{env['PATH']}"}, workspace=str(tmp_path / "ws")
            )
            assert found.allow == ("r.test:443",)
        assert not ran.exists()

    def test_the_tool_is_told_of_listed_variables_alone(self, tools, tmp_path) -> None:
        seen = tmp_path / "seen"
        env = tools("npm", f'env > {seen}; printf \'{{"registry":"https://r.test/"}}\'')
        bad = (
            "PYTHONPATH NODE_OPTIONS NODE_PATH BASH_ENV ENV PYENV_DIR LD_PRELOAD LD_LIBRARY_PATH PYTHONSTARTUP "
            "npm_config_node_options NPM_CONFIG_NODE_OPTIONS npm_config_script_shell npm_config_shell PIP_PYTHON "
            "PYTHONUSERBASE PYTHONHOME GIT_DIR AWS_SECRET_ACCESS_KEY PWD_X"
        ).split()
        inside = tmp_path / "ws"
        more = {"npm_config_registry": "https://e.test/", "npm_config_@a:registry": "https://s.test/", "LANG": "C"}
        places = {"PYENV_ROOT": f"{inside}/pyenv", "XDG_CONFIG_HOME": f"{inside}/c", "PYENV_VERSION": "../../x"}
        planted = dict.fromkeys(bad, "/planted")
        registry_host.project("registry:npm", env=env | planted | more | places, workspace=str(inside))
        names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
        assert names >= {"PATH", "HOME", "LANG", "npm_config_registry"}
        assert not names & {*bad, *places}
        assert "/planted" not in seen.read_text()

    def test_a_home_in_the_workspace_is_not_asked(self, tools, tmp_path) -> None:
        env = tools("npm", f"touch {tmp_path}/ran; echo '{{}}'")
        (tmp_path / "ws" / "home").mkdir(parents=True)
        with pytest.raises(UsageError, match="home directory lies in the workspace"):
            registry_host.project(
                "registry:npm", env=env | {"HOME": f"{tmp_path}/ws/home"}, workspace=str(tmp_path / "ws")
            )
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("tool", ["npm", "pip"])
    @pytest.mark.parametrize("how", ["in", "link in", "link to"])
    def test_a_configuration_file_in_the_workspace_does_not_choose_the_index(
        self, tools, tmp_path, tool: str, how: str, monkeypatch
    ) -> None:
        """Neither now nor from memory."""
        inside, outside = tmp_path / "ws", tmp_path / "etc"
        inside.mkdir()
        outside.mkdir()
        place, other = (outside, inside) if how == "link to" else (inside, outside)
        config = place / "rc"
        if how == "in":
            config.write_text("")
        else:
            (other / "real").write_text("")
            os.symlink(other / "real", config)
        pip = f"""case "$2" in list) echo "global.index-url='https://r.test/simple'";;
            --help) echo;; debug) echo "  {config}, exists: True";; esac"""
        npm = f'printf \'{{"registry":"https://r.test/","userconfig":"{config}"}}\''
        env = tools(tool, pip if tool == "pip" else npm)
        asked: list[str] = []
        monkeypatch.setattr(registry_host, "_file_hosts", lambda url, *_: asked.append(url) or ())
        with pytest.raises(UsageError, match=f"a configuration file of `{tool}` lies in the workspace"):
            registry_host.project(f"registry:{tool}", env=env, workspace=str(inside), state=str(tmp_path))
        assert asked == []
        registry_host.project(f"registry:{tool}", env=env, workspace=str(tmp_path / "else"), state=str(tmp_path))
        monkeypatch.setattr(registry_host, "_ask", None)  # from memory: the tool is not asked
        assert json.loads((tmp_path / "registries.json").read_text())[tool]["files"] == [str(config)]
        with pytest.raises(UsageError, match=f"a configuration file of `{tool}` lies in the workspace"):
            registry_host.project(f"registry:{tool}", env=env, workspace=str(inside), state=str(tmp_path))

    def test_what_it_says_on_stderr_is_not_repeated(self, tools, tmp_path) -> None:
        env = tools("npm", "echo hunter2 >&2; exit 3")
        with pytest.raises(UsageError, match="exit code 3") as info:
            registry_host.project("registry:npm", env=env, workspace="")
        assert "hunter2" not in str(info.value)

    def test_an_answer_is_remembered_for_what_gave_it(self, tools, tmp_path) -> None:
        config = tmp_path / "npmrc"
        config.write_text("")
        count = tmp_path / "count"
        script = f'echo x >> {count}; printf \'{{"registry":"https://r.test/","userconfig":"{config}"}}\''
        env = tools("npm", script)
        state = str(tmp_path)
        first = registry_host.project("registry:npm", env=env, workspace="", state=state)
        assert registry_host.project("registry:npm", env=env, workspace="", state=state) == first
        assert count.read_text() == "x\n"
        assert os.stat(tmp_path / "registries.json").st_mode & 0o777 == 0o600
        config.write_text("registry=https://other.test/")  # a configuration file changed
        registry_host.project("registry:npm", env=env, workspace="", state=state)
        assert count.read_text() == "x\n" * 2
        registry_host.project(
            "registry:npm", env=env | {"npm_config_registry": "https://e.test"}, workspace="", state=state
        )
        assert count.read_text() == "x\n" * 3
        env = tools("npm", script + "\n")  # another tool
        registry_host.project("registry:npm", env=env, workspace="", state=state)
        assert count.read_text() == "x\n" * 4

    def test_an_old_answer_is_asked_again(self, tools, tmp_path, monkeypatch) -> None:
        env = tools("npm", 'printf \'{"registry":"https://r.test/"}\'')
        registry_host.project("registry:npm", env=env, workspace="", state=str(tmp_path))
        entry = json.loads((tmp_path / "registries.json").read_text())
        entry["npm"]["allow"] = ["old.test:443"]
        (tmp_path / "registries.json").write_text(json.dumps(entry))
        assert registry_host.project("registry:npm", env=env, workspace="", state=str(tmp_path)).allow == (
            "old.test:443",
        )
        entry["npm"]["time"] -= 86_400
        (tmp_path / "registries.json").write_text(json.dumps(entry))
        assert registry_host.project("registry:npm", env=env, workspace="", state=str(tmp_path)).allow == (
            "r.test:443",
        )

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"npm": 3}', '{"npm": {"files": 1}}', "\x00", "[" * 99_999])
    def test_a_broken_memory_is_asked_again(self, tools, tmp_path, text: str) -> None:
        env = tools("npm", 'printf \'{"registry":"https://r.test/"}\'')
        (tmp_path / "registries.json").write_text(text)
        assert registry_host.project("registry:npm", env=env, workspace="", state=str(tmp_path)).allow == (
            "r.test:443",
        )

    def test_a_memory_that_others_can_write_is_not_read(self, tools, tmp_path) -> None:
        env = tools("npm", 'printf \'{"registry":"https://r.test/"}\'')
        registry_host.project("registry:npm", env=env, workspace="", state=str(tmp_path))
        file = tmp_path / "registries.json"
        file.write_text(file.read_text().replace("r.test:443", "evil.test:443"))
        file.chmod(0o666)
        assert registry_host.project("registry:npm", env=env, workspace="", state=str(tmp_path)).allow == (
            "r.test:443",
        )

    def test_an_unknown_name(self) -> None:
        with pytest.raises(UsageError, match="`registry:gem` is not known"):
            registry_host.project("registry:gem", env={}, workspace="")

    @pytest.mark.parametrize(("code", "hosts"), [(200, ("files.test:443",)), (404, ())])
    def test_the_index_says_where_files_are(self, monkeypatch, code: int, hosts: tuple[str, ...]) -> None:
        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(code)
                self.end_headers()
                self.wfile.write(b'<a href="https://files.test/x.whl">x</a>')

            def log_message(self, *args) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/simple"
            monkeypatch.setattr(registry_host, "index_of", lambda u, _tool: registry.Index(u, "index.test", 80))
            found = registry_host._file_hosts(url, {}, {})
        finally:
            server.shutdown()
            server.server_close()
        assert tuple(h for h in found if h != "index.test:80") == hosts

    def test_an_index_that_does_not_answer(self, monkeypatch) -> None:
        monkeypatch.setattr(registry_host, "index_of", lambda u, _tool: registry.Index(u, "index.test", 80))
        with pytest.raises(UsageError, match="did not answer"):
            registry_host._file_hosts("http://127.0.0.1:1/simple", {}, {})
