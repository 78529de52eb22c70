// How the search orders its hits; see html_search_scorer in Sphinx's manual.
// Sections come before whole pages, guides before reference, both before pages for developers.
const REFERENCE = ["commands", "configuration", "columns", "python"];
const DEVELOPERS = [
  "architecture", "benchmarks", "json", "CHANGELOG", "CONTRIBUTING", "AGENTS", "README",
];

var Scorer = {
  score: ([page, , anchor, , score, , kind]) => {
    const name = page.split("/").pop();
    const section = kind === "title" && anchor ? 4 : 0;
    if (DEVELOPERS.includes(name)) return score + section - 12;
    if (REFERENCE.includes(name)) return score + section - 6;
    return score + section;
  },
  // The rest is as in Sphinx.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
