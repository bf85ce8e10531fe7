// Sphinx's scores, but where several pages have a word in their titles, those that explain it come first and
// the check's rules last.
var Scorer = {
  score: ([docname, title, anchor, descr, score]) => {
    if (docname.startsWith("explanation/") || docname.startsWith("howto/")) return score + 2;
    return docname.startsWith("reference/rules/") ? score - 1 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
