"""What a rule means, or which rules an error's text belongs to: `stack.explain`."""

from __future__ import annotations

from cudriver.stack import pasted, rulebook
from cudriver.stack.record import Record, fresh
from cudriver.stack.say import LANGUAGES


class Explanation(Record):
    """A rule that was named, or that knows a line of a text."""

    rule: str  # "CU303"; "EX101" is a text without a rule
    title: str
    page: str  # Markdown
    line: int | None = None  # of the text, from 1
    text: str | None = None  # that line
    answer: list[str] = fresh(list)  # in short: of the line, else, but for the first, of the rule


def explain(text: str, *, lang: str = "en") -> list[Explanation]:
    """Explain a rule, or an error's text, as ``cudriver explain`` does.

    Parameters
    ----------
    text : str
        A rule such as ``"CU303"``, or the text of an error: a line, a traceback, a log.
    lang : {"en", "zh"}, optional
        The language of titles, pages and answers.

    Returns
    -------
    list of Explanation
        The rule, or each rule that knows a line of the text, the likeliest first: its ``rule``,
        ``title`` and ``page`` (Markdown), and of a text the ``line``, its number from 1, the line's
        ``text`` and the ``answer``, sentences. Empty where no rule knows the text.

    Raises
    ------
    ValueError
        `lang` is another one.

    Examples
    --------
    >>> [found] = stack.explain("OSError: libcudnn.so.9: cannot open shared object file")
    >>> found.rule, found.line
    ('CU305', 1)
    >>> stack.explain("CU303")[0].title
    'undefined symbol'
    """
    if lang not in LANGUAGES:
        raise ValueError(f"lang={lang!r}: it is one of {', '.join(LANGUAGES)}")
    name = text.strip().upper()
    if name in rulebook.rule_names():
        return [Explanation(name, rulebook.title(name, lang), rulebook.page(name, lang))]
    found: list[Explanation] = []
    for match in rulebook.match(text):
        answer = pasted.answer(match.text, lang)
        if not answer or any(answer == other.answer for other in found):
            answer = [rulebook.summary(match.rule, lang)] if found else []
        title, page = rulebook.title(match.rule, lang), rulebook.page(match.rule, lang)
        found.append(Explanation(match.rule, title, page, match.line, match.text, answer))
    return found
