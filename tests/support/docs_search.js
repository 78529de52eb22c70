// Print the first hits of the site's own search as JSON: node docs_search.js SITE QUERY...
// It runs the scripts that the site's search page loads, without the page.
const { readFileSync } = require("fs");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const read = (name) => readFileSync(`${site}/${name}`, "utf8");
const page = {
  document: { documentElement: { dataset: {} }, addEventListener() {}, getElementById() {} },
  window: {},
  DOCUMENTATION_OPTIONS: { FILE_SUFFIX: ".html", LINK_SUFFIX: ".html" },
  SPHINX_HIGHLIGHT_ENABLED: false,
  URLSearchParams,
  _: (text) => text,
  _ready() {},
};
vm.createContext(page);
const scripts = ["language_data", "searchtools"].map((name) => read(`_static/${name}.js`));
vm.runInContext(`${scripts.join("\n")};
  globalThis.search = (query) => Search._performSearch(...Search._parseQuery(query));
  globalThis.Stemmer ??= window.Stemmer;
  globalThis.Search = Search;`, page);
vm.runInContext(read("searchindex.js"), page);
const hits = queries.map((query) => page.search(query).reverse().slice(0, 3));
console.log(JSON.stringify(hits.map((some) => some.map((hit) => `${hit[0]}${hit[2] ?? ""}`))));
