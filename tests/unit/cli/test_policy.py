"""`saggar policy`: output, exit codes, discovery."""

from __future__ import annotations

import json

import pytest

from saggar.cli.main import main


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SAGGAR_POLICY", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path / "home"


def run(capsys, *argv):
    code = main(["policy", *argv])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_show_defaults(capsys):
    code, out, err = run(capsys, "show")
    assert code == 0
    assert 'memory = "1GiB"   # default' in out
    assert "# no [[egress.allow]]" in out
    assert err == ""


def test_show_merges_and_warns(capsys, tmp_path):
    (tmp_path / "p.toml").write_text('[[egress.allow]]\nhost = "github.com"\n')
    code, out, err = run(
        capsys, "show", "--policy", str(tmp_path / "p.toml"), "--allow", "x.test:8080", "--workspace", ".:read-only"
    )
    assert code == 0
    assert 'host = "x.test"' in out
    assert f'path = "{tmp_path}/work"' in out
    assert "p.toml:2: warning: `egress.allow[0].host`: anyone can write to `github.com`" in err


def test_show_json(capsys):
    code, out, _ = run(capsys, "show", "--json", "--tier", "process")
    shown = json.loads(out)
    assert code == 0
    assert shown["policy"]["isolation"]["tier"] == "process"
    assert shown["origins"]["isolation.tier"] == "flag"
    assert shown["warnings"] == []


def test_user_file_is_found_and_workspace_file_is_not(capsys, home, tmp_path):
    (tmp_path / "work" / "saggar.toml").write_text("[limits]\ntasks = 1\n")
    assert "tasks = 256" in run(capsys, "show")[1]
    own = home / ".config" / "saggar" / "saggar.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[limits]\ntasks = 7\n")
    assert "tasks = 7" in run(capsys, "show")[1]
    assert "tasks = 1 " in run(capsys, "show", "--policy", "saggar.toml")[1]


def test_environment_cannot_point_into_the_workspace(capsys, tmp_path, monkeypatch):
    (tmp_path / "work" / "saggar.toml").write_text("")
    monkeypatch.setenv("SAGGAR_POLICY", str(tmp_path / "work" / "saggar.toml"))
    code, out, err = run(capsys, "show")
    assert code == 2
    assert "lies in the workspace" in err
    assert out == ""


def test_check_tells_every_problem(capsys, tmp_path):
    path = tmp_path / "p.toml"
    path.write_text("[limits]\nmemroy = 1\ntasks = 0\n")
    code, out, err = run(capsys, "check", str(path))
    assert code == 2
    assert out == ""
    assert err == (
        f"{path}:2: unknown key `memroy` in `[limits]` (hint: did you mean `memory`?)\n"
        f"{path}:3: `limits.tasks`: `0` is not between 1 and 4194304\n"
    )
    code, out, _ = run(capsys, "check", "--json", str(path))
    assert code == 2
    assert [p["line"] for p in json.loads(out)["problems"]] == [2, 3]


def test_check_sound_and_missing(capsys, tmp_path):
    path = tmp_path / "p.toml"
    path.write_text('[[egress.allow]]\nhost = "a.test"\n')
    assert run(capsys, "check", str(path)) == (0, f"{path}: sound; host rules: 1, warnings: 0\n", "")
    code, _, err = run(capsys, "check", str(tmp_path / "none.toml"))
    assert code == 2
    assert "no such file" in err


def test_schema(capsys):
    code, out, _ = run(capsys, "schema")
    assert code == 0
    assert json.loads(out)["additionalProperties"] is False
