"""`saggar policy check` reads the texts of `[tools]` as far as that goes without the tools."""

from __future__ import annotations

import pytest

from saggar.cli.policy import main

GOOD = '[tools]\ncapabilities = ["send:email[to=*@a.example, max=3]"]\n[[tools.rule]]\nid = "r"\neffect = "allow"\ntool = "x"\nwhen = { to = "*@a.example" }\n'


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (GOOD, 0, ""),
        (GOOD.replace("send:email", "Send:email"), 2, "saggar.toml:2: capability 0: an operation is missing"),
        (GOOD.replace("max=3", "max=x"), 2, "saggar.toml:2: capability 0: a number is missing"),
        (
            GOOD.replace('{ to = "*@a.example" }', '{ to = "*@*" }'),
            2,
            "saggar.toml:7: `to` of rule `r`: a word with more than one star",
        ),
    ],
)
def test_check(tmp_path, monkeypatch, capsys, text, code, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saggar.toml").write_text(text)
    assert main(["policy", "check", "saggar.toml"]) == code
    assert said in capsys.readouterr().err
