"""Search on the Chinese site: by the glossary's terms, and by words that are written together."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.search.zh import SearchChinese

GLOSSARY = Path(__file__).parent.parent / "zh" / "glossary.md"
# A query is cut where the index has words: the longest one at each place. Sphinx takes what stands
# between blanks for one word.
SPLITTER = r"""
var splitQuery = (query) => {
  const { terms, titleterms } = Search._index;
  const known = (word) => Object.hasOwn(terms, word) || Object.hasOwn(titleterms, word);
  const cut = (run) => {
    const words = [];
    for (let at = 0; at < run.length; ) {
      let end = run.length;
      while (end > at + 1 && !known(run.slice(at, end))) end--;
      if (end > at + 1) words.push(run.slice(at, end));
      at = end;
    }
    return words.length ? words : [run];
  };
  const runs = query.match(/\p{Script=Han}+|(?:(?!\p{Script=Han})[\p{L}\p{N}_])+/gu) || [];
  return runs.flatMap((run) => (/\p{Script=Han}/u.test(run) ? cut(run) : [run]));
};
"""


class Search(SearchChinese):
    """Sphinx's, with our terms and a splitter for the browser."""

    language_name = "English"  # the stemmer's: Sphinx 9.0 looks for a Chinese one in vain (#14229)
    js_splitter_code = SPLITTER

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        import jieba

        rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|", GLOSSARY.read_text(encoding="utf-8"), re.M)
        for term in re.findall(r"[\u4e00-\u9fff]{2,}", " ".join(rows)):
            jieba.add_word(term)


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.add_search_language(Search)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
