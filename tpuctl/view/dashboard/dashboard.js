"use strict";

// The token is in the URL's fragment, which browsers send to no server. Afterwards the fragment
// is the id of the job that is shown; without one the server chooses.
const TOKEN = "tpuctl-token";
const MAX_LINES = 2000; // of the log on the page
const fragment = () => new URLSearchParams(location.hash.slice(1));
if (fragment().has("token")) {
  sessionStorage.setItem(TOKEN, fragment().get("token"));
  history.replaceState(null, "", location.pathname);
}

const element = (id) => document.getElementById(id);
const sections = {}; // HTML as on the page
let logName = "";
let lineCount = 0; // of the log on the page, those removed included
let timer = 0;
let requests = 0;

async function refresh() {
  clearTimeout(timer);
  if (document.hidden) return; // no page is looked at: the cloud is not queried
  const request = ++requests;
  let seconds = 5;
  try {
    const job = fragment().get("job") ?? "";
    const response = await fetch(`state?job=${encodeURIComponent(job)}`, {
      headers: { Authorization: `Bearer ${sessionStorage.getItem(TOKEN) ?? ""}` },
    });
    const problem = `tpuctl dashboard answers with status ${response.status}.`;
    const answer = await response.json().catch(() => ({ problem }));
    if (request !== requests) return; // another job was chosen
    if (response.ok) {
      seconds = answer.seconds;
      show(answer);
    } else element("problem").textContent = answer.problem;
  } catch {
    if (request !== requests) return;
    element("problem").textContent =
      "tpuctl dashboard does not respond. This is the last state it reported.";
  }
  timer = setTimeout(refresh, seconds * 1000);
}

function show(answer) {
  document.title = `${answer.stack}: tpuctl dashboard`;
  element("title").replaceChildren(answer.stack, " ", document.createElement("span"));
  element("title").lastChild.textContent = `in project ${answer.project}`;
  element("updated").textContent = `As of ${answer.updated}, every ${answer.seconds} s`;
  element("problem").textContent = answer.problem;
  for (const [id, html] of Object.entries(answer.sections)) {
    if (sections[id] !== html) element(id).innerHTML = sections[id] = html; // escaped by the server
  }
  element("log-section").hidden = answer.log === null;
  if (answer.log !== null) showLog(answer.log);
}

function showLog(log) {
  const view = element("log");
  if (log.name !== logName) {
    view.replaceChildren();
    element("log-name").textContent = logName = log.name;
    lineCount = 0;
  }
  const follows = view.scrollHeight - view.scrollTop - view.clientHeight < 10;
  const first = log.count - log.lines.length;
  view.querySelector(".rest")?.remove();
  if (lineCount < first) {
    append(view, `… ${(first - lineCount).toLocaleString("en")} lines: tpuctl logs shows all`, "soft");
  }
  for (const line of log.lines.slice(Math.max(0, lineCount - first))) append(view, line, "");
  lineCount = log.count;
  if (log.rest) append(view, log.rest, "rest");
  while (view.childElementCount > MAX_LINES) view.firstChild.remove();
  if (follows) view.scrollTop = view.scrollHeight;
}

function append(view, text, name) {
  const line = document.createElement("div");
  line.textContent = text;
  line.className = name;
  view.append(line);
}

addEventListener("hashchange", refresh);
document.addEventListener("visibilitychange", refresh);
refresh();
