// The pages: sign in with a token, then lists and one rollout, drawn from the API.
// Everything from the API becomes text nodes: no string is ever parsed as markup.
import { children, element, fact, table, text } from "./draw.js";

const TOKEN = "invigilator-token";
const PAGE_ROWS = 100;
const main = document.getElementById("main");
const state = document.getElementById("state");
const signOut = document.getElementById("sign-out");
let drawing = 0;

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(query ? `${path}?${query}` : path, { headers, cache: "no-store", credentials: "omit" });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    throw new ApiError(answer.status, [body.detail || `status ${answer.status}`, body.fix].filter(Boolean).join("; "));
  }
  return body;
}

function penalty(value, drop) {
  if (value === null) return text("unknown", "warn");
  const shown = text(value.toFixed(3), value < 0 ? "bad" : "good");
  return drop ? children("span", shown, text(" drop", "warn")) : shown;
}

function status(name) {
  return text(name, name === "final" ? "" : "warn");
}

function severity(name) {
  return text(name, name === "critical" || name === "high" ? "bad" : name === "medium" ? "warn" : "quiet");
}

function rolloutLink(row) {
  const address = `#/rollout/${encodeURIComponent(row.run_id || "")}/${encodeURIComponent(row.rollout_id)}`;
  return element("a", { href: address, className: "bytes" }, row.rollout_id);
}

function when(stamp) {
  return element("time", { dateTime: stamp, title: stamp }, stamp.slice(0, 19).replace("T", " "));
}

const ROLLOUTS = [
  ["rollout", rolloutLink],
  ["run", (row) => row.run_id],
  ["attempt", (row) => row.attempt, "number"],
  ["policy", (row) => row.policy],
  ["ended (UTC)", (row) => when(row.ended_at), "number"],
  ["status", (row) => status(row.status)],
  ["exit", (row) => (row.exit_code === null ? row.exit_reason : `${row.exit_code} ${row.exit_reason}`)],
  ["incidents that count", (row) => row.counted_incidents, "number"],
  ["penalty", (row) => penalty(row.value, row.drop), "number"],
];

const INCIDENTS = [
  ["kind", (row) => row.kind, "name"],
  ["severity", (row) => severity(row.severity)],
  ["outcome", (row) => row.outcome],
  ["count", (row) => row.count, "number"],
  ["what", (row) => row.summary, "bytes"],
  ["phase", (row) => row.phase],
  ["step", (row) => row.step_id || "", "bytes"],
  ["confidence", (row) => row.confidence.toFixed(2), "number"],
  ["last (UTC)", (row) => when(row.last_at), "number"],
];

const PENALTIES = [
  ["rollout", rolloutLink],
  ["run", (row) => row.run_id],
  ["status", (row) => status(row.status)],
  ["penalty", (row) => penalty(row.value, row.drop), "number"],
  ["at least", (row) => (row.bound ? "yes" : ""), ""],
];

async function list(path, key, columns, title, parameters = {}) {
  const rows = [];
  const found = element("div", { className: "scroll" });
  const more = element("button", { type: "button", className: "more" }, "More");
  async function load() {
    const answer = await ask(path, { ...parameters, limit: PAGE_ROWS, offset: rows.length });
    rows.push(...answer[key]);
    more.hidden = answer[key].length < PAGE_ROWS;
    found.replaceChildren(rows.length ? table(columns, rows) : text("Nothing yet.", "quiet"));
  }
  await load();
  more.addEventListener("click", () => load().catch(fail));
  return [element("h2", {}, title), found, more];
}

async function incidents() {
  const columns = [...INCIDENTS, ["rollout", rolloutLink]];
  return list("/v1/incidents", "incidents", columns, "Incidents");
}

async function rollout(runId, rolloutId) {
  const path = `/v1/rollouts/${encodeURIComponent(rolloutId)}`;
  const report = await ask(path, { run_id: runId });
  const facts = element("dl");
  fact(facts, "run", report.run_id || "none");
  fact(facts, "attempt", report.attempt);
  fact(facts, "policy", report.policy.name);
  fact(facts, "status", status(report.status));
  if (report.failure) fact(facts, "failure", text(report.failure, "warn"));
  fact(facts, "penalty", penalty(report.penalty.value, report.penalty.drop));
  fact(facts, "time (UTC)", children("span", when(report.started_at), text(" to "), when(report.ended_at)));
  fact(facts, "events", `${report.events.produced} produced, ${report.events.lost} lost`);
  fact(facts, "coverage", pairs(report.coverage));
  fact(facts, "enforced", pairs(report.enforcement));
  fact(facts, "labels", pairs(report.labels));
  fact(facts, "sandbox", text(report.sandbox_id, "bytes"));
  const reasons = report.penalty.reasons.map((reason) => ({ ...reason }));
  const parts = [element("h2", {}, `Rollout ${rolloutId}`), facts];
  if (reasons.length) {
    const columns = [
      ["kind", (row) => row.kind, "name"],
      ["weight", (row) => row.weight, "number"],
      ["factor", (row) => row.factor, "number"],
      ["cost", (row) => row.cost, "number"],
      ["why", (row) => row.text, "bytes"],
    ];
    parts.push(element("h2", {}, "What it costs"), table(columns, reasons));
  }
  parts.push(element("h2", {}, "Incidents"));
  const columns = [...INCIDENTS, ["evidence", (row) => evidence(row.evidence)]];
  parts.push(report.incidents.length ? table(columns, report.incidents) : text("None.", "good"));
  return parts;
}

function pairs(map) {
  const words = Object.entries(map).map(([name, value]) => `${name}: ${value}`);
  return text(words.join(", ") || "none", "bytes");
}

function evidence(facts) {
  const shown = element("details");
  shown.append(element("summary", {}, `${facts.length} ${facts.length === 1 ? "fact" : "facts"}`));
  shown.append(element("pre", {}, facts.map((one) => JSON.stringify(one)).join("\n")));
  return shown;
}

function signIn(message) {
  const form = element("form");
  const input = element("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const why = element("p", { className: "error" }, message);
  why.setAttribute("role", "alert");
  form.append(
    element("label", { htmlFor: "token" }, "Access token (guard token create --role researcher --name you)"),
    input,
    element("button", { type: "submit" }, "Sign in"),
    why,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, input.value.trim());
    draw();
  });
  main.replaceChildren(form);
  input.focus();
}

function fail(error) {
  signOut.hidden = sessionStorage.getItem(TOKEN) === null;
  if (error instanceof ApiError && error.status === 401) {
    const tried = sessionStorage.getItem(TOKEN) !== null;
    sessionStorage.removeItem(TOKEN);
    signOut.hidden = true;
    signIn(tried ? error.message : "");
    return;
  }
  const shown = element("p", { className: "error" }, error.message);
  shown.setAttribute("role", "alert");
  main.replaceChildren(shown);
}

async function view() {
  const [, page, first = "", second = ""] = location.hash.split("/");
  if (page === "incidents") return incidents();
  if (page === "penalties") return list("/v1/rollouts", "rollouts", PENALTIES, "Penalties");
  if (page === "rollout") return rollout(decodeURIComponent(first), decodeURIComponent(second));
  return list("/v1/rollouts", "rollouts", ROLLOUTS, "Rollouts");
}

async function draw() {
  const mine = ++drawing;
  state.textContent = "loading";
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === (location.hash || "#/rollouts");
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  try {
    const parts = await view();
    if (mine !== drawing) return;
    main.replaceChildren(...parts);
    signOut.hidden = sessionStorage.getItem(TOKEN) === null;
  } catch (error) {
    if (mine === drawing) fail(error);
  }
  if (mine === drawing) state.textContent = "";
}

signOut.addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  signOut.hidden = true;
  signIn("");
});
addEventListener("hashchange", draw);
draw();
