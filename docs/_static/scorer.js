// Scores of the search: pages that are generated from the code stand below those that explain.
var Scorer = {
  score: ([docname, , , , score]) => (docname.startsWith("reference/") ? score - 200 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
