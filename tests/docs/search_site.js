// Runs the site's search worker, as a browser does, and prints the pages it finds for each query.
// node search_site.js SITE QUERY...
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const workers = path.join(site, "assets/javascripts/workers");
const program = fs.readdirSync(workers).find((name) => name.endsWith(".js"));
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));

let listener;
let receive;
const context = { console, URL, Promise, setTimeout };
context.self = context.globalThis = context;
context.addEventListener = (_, handle) => { listener = handle; };
context.postMessage = (message) => receive(message);
context.importScripts = (...names) => {
  for (const name of names) {
    vm.runInContext(fs.readFileSync(path.join(workers, name), "utf8"), context);
  }
};
vm.createContext(context);
vm.runInContext(fs.readFileSync(path.join(workers, program), "utf8"), context);

function send(type, data) {
  return new Promise((resolve) => {
    receive = resolve;
    listener({ data: { type, data } });
  });
}

(async () => {
  await send(0, { ...index, options: { suggest: false } });  // set up
  const found = {};
  for (const query of queries) {
    const { data } = await send(2, query);
    found[query] = data.items.map((page) => page[0].location);
  }
  console.log(JSON.stringify(found));
})();
