from __future__ import annotations

import pytest

from saggar.plan.defang import defang, is_link


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("see https://evil.test/a?b=c.", "see hxxps[:]//evil[.]test/a?b=c."),
        ("www.evil.test!", "www[.]evil[.]test!"),
        ("evil.com", "evil[.]com"),
        ("[here](https://evil.test)", "[here] (hxxps[:]//evil[.]test)"),
        ("<a href='http://evil.test/x'>", "<a href='hxxp[:]//evil[.]test/x'>"),
        # what a browser takes for a link without the usual beginning
        ("![a](//evil.com/p.png?d=S)", "![a] (/[/]evil[.]com/p[.]png?d=S)"),
        ("//evil.com/x?d=1", "/[/]evil[.]com/x?d=1"),
        ("[a](https:evil.com/x)", "[a] (hxxps[:]evil[.]com/x)"),
        ("[a](https:/evil.com/x)", "[a] (hxxps[:]/evil[.]com/x)"),
        ("http:evil.com/x", "hxxp[:]evil[.]com/x"),
        ("1.2.3.4/x and 1.2.3.4?d=1", "1[.]2[.]3[.]4/x and 1[.]2[.]3[.]4?d=1"),
        ("x@evil.com/leak?d=1", "x@evil[.]com/leak?d=1"),
        ("evil.com?d=1", "evil[.]com?d=1"),
        ("<img src=//evil.com/p>", "<img src=/[/]evil[.]com/p>"),
        ("／／evil.com evil․com", "／[／]evil[.]com evil[․]com"),
        # every target of markdown's is one
        ("[a](<evil>) [b](  evil", "[a] (<evil>) [b] (  evil"),
        ("host 1.2.3.4, 4.5/5 stars, and/or", "host 1.2.3.4, 4.5/5 stars, and/or"),
        ("javascript:alert", "javascript[:]alert"),
        ("evil.test/path", "evil[.]test/path"),
        ("http://http://evil.test", "hxxp[:]//hxxp[:]//evil[.]test"),
        ("ｗｗｗ．evil．com", "ｗｗｗ[．]evil[．]com"),
        ("mail ann@x.com about report.docx, v1.2.3 at 10:30", "mail ann@x.com about report.docx, v1.2.3 at 10:30"),
        ("plain words. And more", "plain words. And more"),
    ],
)  # fmt: skip
def test_defang(text, out):
    assert defang(text) == out


def test_what_the_user_wrote_stays_and_only_exactly_that():
    said = "open https://good.test/a"
    assert defang("https://good.test/a https://good.test/ab https://evil.test/?https://good.test/a", said) == (
        "https://good.test/a hxxps[:]//good[.]test/ab hxxps[:]//evil[.]test/?hxxps[:]//good[.]test/a"
    )


def test_a_long_text_is_linear():
    text = "a." * 200_000 + " http" * 50_000
    assert len(defang(text)) >= len(text)


@pytest.mark.parametrize("word", ["", ".", "..", "a.", ".a", "a@b.com", "file.txt", "3.14"])
def test_no_link(word):
    assert not is_link(word)
