"""Model output is hostile: what reaches the page is text and a few tags without attributes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.evals.answer_html import answer_html, plain_text

ALLOWED = {
    "p", "br", "hr", "strong", "em", "s", "code", "pre", "blockquote", "ul", "ol", "li", "h1", "h2", "h3", "h4", "h5", "h6",
    "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)([^>]*)>")


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        '<img src=x onerror="alert(1)">',
        "<svg/onload=alert(1)>",
        "[a](javascript:alert(1))",
        "[a]: javascript:alert(1)\n\n[a]",
        "![p](https://evil.example/p.png)",
        "<https://evil.example>",
        "</div></main><style>*{display:none}</style>",
        "```html\n<script>alert(1)</script>\n```",
        "| <b onclick=x> | y |\n|---|---|\n| <iframe src=//e> | z |",
        "<!-- --><plaintext>",
        '"><a href="https://evil.example">x</a>',
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "`</code><script>x</script>`",
        "<ScRiPt\x00>alert(1)",
    ],
)
def test_no_tag_of_the_models_survives(text: str) -> None:
    """E7: raw HTML, links and pictures are shown as the text they are."""
    html = str(answer_html(text))
    for _, name, rest in TAG.findall(html):
        assert name in ALLOWED
        assert rest in ("", " /", " /"), html


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=200)
    | st.text(alphabet="<>/=\"'`|*_[]()!& \n-#abonscript", max_size=80)
)
@settings(max_examples=150, deadline=None)
def test_whatever_a_model_writes(text: str) -> None:
    """E7: any text at all leaves only tags of the list, without attributes, and never raises."""
    for _, name, rest in TAG.findall(str(answer_html(text))):
        assert name in ALLOWED
        assert rest.strip(" /") == ""


def test_markdown_is_set() -> None:
    """E7: emphasis, code, lists, tables; single line ends stay."""
    assert str(answer_html("**b** *i* `c`")) == "<p><strong>b</strong> <em>i</em> <code>c</code></p>\n"
    assert "<li>one</li>" in answer_html("- one\n- two")
    assert "<td>1</td>" in answer_html("| a |\n|---|\n| 1 |")
    assert "one<br>" in answer_html("one\ntwo")
    assert "<em>py &lt;b&gt;</em></p>\n<pre><code>x &lt; 1\n</code></pre>" in answer_html("```py <b>\nx < 1\n```")
    assert "1 &lt; 2 &amp;&amp; 3 &gt; 2" in answer_html("1 < 2 && 3 > 2")


def test_a_very_long_answer_is_cut_and_says_so() -> None:
    """E7: 12 000 characters are shown, of 20 345."""
    html = answer_html("x" * 20_345)
    assert html.count("x") == 12_000
    assert "8,345 more characters are not shown" in html
    assert plain_text("x" * 12_001).endswith("… (1 more characters)")
    assert plain_text("x" * 12_000) == "x" * 12_000


def test_what_no_page_can_hold_is_replaced() -> None:
    """Pitfall: U+0000 and lone surrogates; tabs and line ends stay."""
    assert plain_text("a\x00b\ud800c\td\n") == "a\ufffdb?c\td\n"
    answer_html("a\x00b\ud800c").encode("utf-8")


def test_deep_nesting_ends() -> None:
    """E7: a thousand quotes in one another neither raise nor take long, and no text is lost."""
    assert "deep" in answer_html(">" * 1000 + " deep")
    assert "deep" in answer_html("[" * 3000 + "*" * 3000 + "deep")
