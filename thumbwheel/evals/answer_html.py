"""Model output as HTML that can do nothing: Markdown is set, everything else is shown as the text it is.

Model output is hostile. Raw HTML is escaped by the parser, links and pictures are left as their source text (a report has no
reason to send anyone anywhere), and what comes out passes an allow-list without any attribute.
"""

from __future__ import annotations

from collections.abc import Sequence

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

MAX_CHARACTERS = 12_000
MAX_NESTING = 20
_TAGS = {
    *("p", "br", "hr", "strong", "em", "s", "code", "pre", "blockquote", "ul", "ol", "li"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}
_MARKDOWN = (
    MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": MAX_NESTING})
    .enable(["table", "strikethrough"])
    .disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])
)


def answer_html(text: str) -> Markup:
    """`text` as safe HTML. Only tags of the allow-list come out, with no attribute at all.

    Longer than 12 000 characters is cut, and says so.
    """
    left_out = len(text) - MAX_CHARACTERS
    html = nh3.clean(_set(_plain(text[:MAX_CHARACTERS])), tags=_TAGS, attributes={}, link_rel=None)
    if left_out > 0:
        html += f"<p><em>… {left_out:,} more characters are not shown.</em></p>"
    return Markup(html)


def _fence(renderer: object, tokens: Sequence[Token], index: int, options: object, env: object) -> str:
    """A code block with the word after its first fence, which is text of the model's too."""
    token = tokens[index]
    info = f"<p><em>{escape(token.info.strip())}</em></p>\n" if token.info.strip() else ""
    return f"{info}<pre><code>{escape(token.content)}</code></pre>\n"


_MARKDOWN.add_render_rule("fence", _fence)


def _set(text: str) -> str:
    """Markdown as HTML. The parser drops what is nested too deeply, and a report must not hide text: such is left unset."""
    tokens = _MARKDOWN.parse(text)
    if any(token.level >= MAX_NESTING - 1 for token in tokens):
        return f"<pre>{escape(text)}</pre>"
    html: str = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    return html


def plain_text(text: str) -> str:
    """`text` for a page or a label: no lone surrogate, no control character but tab and line end, cut like an answer."""
    left_out = len(text) - MAX_CHARACTERS
    shown = _plain(text[:MAX_CHARACTERS])
    return f"{shown}… ({left_out:,} more characters)" if left_out > 0 else shown


def _plain(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if (c >= " " and c != "\x7f") or c in "\t\n\r" else "\ufffd" for c in text)
