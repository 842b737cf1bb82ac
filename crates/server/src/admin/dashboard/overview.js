// The first page, and the page of one rule.

import { desk, may } from "./acting.js";
import { call } from "./api.js";
import { lastChanges, switching } from "./changes.js";
import { bytes, chart, h, patch, short, show, table, tell, time, wait, when } from "./dom.js";
import { history, ofRule, percentile, rule as find, sum } from "./history.js";

// Requests, and not sums over rules: several rules may apply to a request.
const denied = (it) => it.requests.denied;
const allowed = (it) => it.requests.allowed;
const storeFailed = (it) => it.requests.storeFailed;
const fallbacks = (it) => sum(Object.values(it.fallbacks), (count) => count);
const failedCalls = (it) => it.store.failedCalls;
const wouldDeny = (isWanted) => (it) => sum(it.rules, (rule) => (isWanted(rule) ? rule.shadowDenied : 0));
const byShadow = wouldDeny((rule) => rule.candidateOf === null);
const byCandidates = wouldDeny((rule) => rule.candidateOf !== null);
const unmatched = (it) => sum(it.doors, (door) => door.unmatched);

const card = (label, value, kind = "") => h("div", { class: "card" }, h("span", {}, label), h("b", { class: kind }, value));

function latency(now, share) {
  const before = history.documents.at(-31) ?? history.documents[0];
  const old = before === now ? null : before;
  if (now.store.kind === "redis") {
    const at = percentile(old?.store.latency, now.store.latency, share);
    return at === null ? "–" : at === Infinity ? "over the scale" : `≤ ${wait(at / 1000) === "0 ms" ? `${at} µs` : `${at / 1000} ms`}`;
  }
  return "in memory";
}

let sorted = "denied";
/** The part of an id, an algorithm or a state that the shown rules have. */
let wanted = "";

/** How often the last changes are read while the first page is open, in milliseconds. */
const CHANGES_EVERY = 15_000;

export function overview(main) {
  const cards = h("div", { class: "cards" });
  const lines = h("section", { "aria-label": "Allowed and denied" });
  const rules = h("div");
  const search = h("label", {}, "Find a rule ", h("input", { type: "search", value: wanted, autocomplete: "off", spellcheck: "false", placeholder: "a part of its name, algorithm or state", input: (event) => { wanted = event.target.value.trim().toLowerCase(); draw(); } }));
  const sides = h("div");
  const notices = h("div");
  const version = h("p");
  const last = h("div");
  show(main, h("h1", {}, "Now"), notices, cards, lines, h("section", { "aria-label": "Rules" }, h("h2", {}, "Rules"), h("p", {}, search), rules),
    h("section", { "aria-label": "Config" }, h("h2", {}, "Config and last changes"), version, last, h("p", {}, h("a", { href: "#/changes" }, "All changes"))), sides);
  let readAt = 0;
  let readFor = null;
  const draw = () => {
    const now = history.last();
    if (!now) return;
    tell(version, `Config ${now.configVersion}, in force since ${when(now.configLoadedAtEpochMillis)}.`);
    // The audit trail may be long, so it is read seldom, and at once after a new config.
    if (readFor !== now.configVersion || now.atEpochMillis - readAt > CHANGES_EVERY) {
      [readAt, readFor] = [now.atEpochMillis, now.configVersion];
      lastChanges(last);
    }
    patch(notices, notice(now));
    const deniedRate = history.rate(denied);
    const allowedRate = history.rate(allowed);
    const share = allowedRate + deniedRate > 0 ? (100 * deniedRate) / (allowedRate + deniedRate) : 0;
    const breakers = Object.entries(now.store.breakers).filter(([, state]) => state !== "closed");
    const failedRate = history.rate(storeFailed);
    patch(cards,
      card("allowed a second", short(allowedRate), "good"),
      card("denied a second", short(deniedRate), deniedRate > 0 ? "bad" : ""),
      card("share denied", `${share.toFixed(1)} %`),
      card("no rule applied, a second", short(history.rate(unmatched))),
      card("store failed, a second", short(failedRate), failedRate > 0 ? "bad" : ""),
      card("failure policies, a second", short(history.rate(fallbacks)), history.rate(fallbacks) > 0 ? "bad" : ""),
      now.rules.some((it) => it.state === "shadow") ? card("shadow rules would deny, a second", short(history.rate(byShadow))) : null,
      now.rules.some((it) => it.candidateOf !== null) ? card("candidates would deny, a second", short(history.rate(byCandidates))) : null,
      card("store", now.store.problem ? "down" : breakers.length ? breakers[0][1] : now.store.kind, now.store.problem || breakers.length ? "bad" : "good"),
      card("store p50 / p99", now.store.kind === "redis" ? `${latency(now, 0.5)} / ${latency(now, 0.99)}` : "in memory"),
      now.store.kind === "redis" ? card("failed store calls, a second", short(history.rate(failedCalls)), history.rate(failedCalls) > 0 ? "bad" : "") : null,
      card(`keys of namespace ${now.namespace}`, `${short(now.store.keys)} of ${short(now.store.maxKeys)}`),
      card("memory of states", bytes(now.store.bytes)),
      card("memory of the process", bytes(now.process.residentBytes)),
      now.ledger ? card("ledger behind", now.ledger.connected ? wait(now.ledger.lagMillis) : "unreachable", now.ledger.connected ? "" : "bad") : null);
    patch(lines, h("h2", {}, "Last two minutes"),
      chart(`Allowed ${short(allowedRate)} a second, denied ${short(deniedRate)} a second`, [
        { class: "line-good", values: history.rates(allowed) },
        { class: "line-bad", values: history.rates(denied) },
      ]),
      h("p", { class: "legend" }, h("span", { class: "good" }, h("i"), "allowed"), h("span", { class: "bad" }, h("i"), "denied")));
    patch(rules, ruleTable(now, draw));
    patch(sides,
      h("section", {}, h("h2", {}, "Busiest subjects"), table("Busiest subjects", ["rule", "subject (hash)", "recent checks#"],
        now.hotKeys.map((it) => [link(it.rule), h("a", { class: "mono", href: `#/denials?hash=${it.subject}` }, it.subject), short(it.checks)]), undefined, now.hotKeys.map((it) => `${it.rule} ${it.subject}`))),
      now.store.ruleKeys.length ? h("section", {}, h("h2", {}, `Keys of namespace ${now.namespace} in Redis`), table("Keys by rule", ["rule", "keys#", "bytes#"],
        now.store.ruleKeys.map((it) => [it.rule, short(it.keys), bytes(it.bytes)]))) : null,
      h("section", {}, h("h2", {}, "Doors"), table("Doors", ["door", "requests a second#", "denied and other statuses", "bad requests#", "connections#"],
        now.doors.map((it) => [it.door, short(history.rate((d) => sum(Object.values(d.doors.find((x) => x.door === it.door)?.statuses ?? {}), (n) => n))),
          Object.entries(it.statuses).map(([status, count]) => `${status}: ${short(count)}`).join(", "), short(it.badRequests), short(it.openConnections)]))));
  };
  return draw;
}

function notice(now) {
  const texts = [];
  if (now.configRejected) texts.push(`The config file was rejected, the old config stays in force: ${now.configRejected}`);
  if (now.store.problem) texts.push(`The store cannot be used, failure policies decide: ${now.store.problem}`);
  if (now.who === "anonymous") texts.push("This admin door has no tokens: every local user may do everything.");
  return texts.map((text) => h("p", { class: "notice" }, text));
}

const link = (id) => (id ? h("a", { href: `#/rule/${encodeURIComponent(id)}` }, id) : "");

/** How many rules the table shows. With more, the busiest are shown. */
const SHOWN = 50;

const kind = (it) => (it.candidateOf === null ? it.state : `candidate for ${it.candidateOf}`);

function ruleTable(now, draw) {
  const orders = {
    denied: (it) => -history.rate(ofRule(it.ruleId, "denied")),
    allowed: (it) => -history.rate(ofRule(it.ruleId, "allowed")),
    rule: (it) => it.ruleId,
  };
  const found = now.rules.filter((it) => !wanted || `${it.ruleId} ${it.algorithm} ${kind(it)}`.toLowerCase().includes(wanted));
  if (!found.length) return [h("p", { class: "dim" }, wanted ? "No rule has this in its name, algorithm or state." : "There are no rules.")];
  const keyed = found.map((it) => [orders[sorted](it), it.denied, it]);
  keyed.sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : b[1] - a[1]));
  const shown = keyed.slice(0, SHOWN).map(([, , it]) => it);
  const by = (name) => h("button", { type: "button", "aria-pressed": String(sorted === name), "data-key": name, click: () => { sorted = name; draw(); } }, name === sorted ? `${name} ▾` : name);
  const rows = shown.map((it) => {
    const rates = history.rates(ofRule(it.ruleId, "denied"));
    return h("tr", { "data-key": it.ruleId },
      h("td", {}, link(it.ruleId)), h("td", {}, kind(it) === "enforce" ? it.algorithm : `${it.algorithm}, ${kind(it)}`),
      h("td", { class: "number" }, short(history.rate(ofRule(it.ruleId, "allowed")))),
      h("td", { class: "number" }, short(history.rate(ofRule(it.ruleId, "denied")))),
      h("td", {}, chart(`Denials of ${it.ruleId}`, [{ class: "line-bad", values: rates }], { kind: "spark", width: 120, height: 24 })),
      h("td", { class: "number" }, short(it.denied)), h("td", { class: "number" }, short(it.nearLimit)), h("td", { class: "number" }, short(it.shadowDenied)));
  });
  const head = h("tr", {}, h("th", { scope: "col" }, by("rule")), h("th", { scope: "col" }, "algorithm"), h("th", { scope: "col", class: "number" }, by("allowed"), "/s"),
    h("th", { scope: "col", class: "number" }, by("denied"), "/s"), h("th", { scope: "col" }, "last two minutes"), h("th", { scope: "col", class: "number" }, "denied in all"),
    h("th", { scope: "col", class: "number" }, "near limit"), h("th", { scope: "col", class: "number" }, "would deny"));
  const more = found.length - shown.length;
  return [h("table", { "aria-label": "Rules" }, h("thead", {}, head), h("tbody", {}, rows)), more > 0 ? h("p", { class: "dim" }, `and ${more} more: find them by a part of the name`) : null];
}

/** The figures of one lane and weight of a fair rule, in a document. */
const ofClass = (id, lane, weight, what) => (document) =>
  find(document, id)?.fair?.lanes.find((it) => it.lane === lane)?.weights.find((it) => it.weight === weight)?.[what] ?? 0;

/** The lanes of a fair rule, and what clients of each weight get now. */
function lanes(id, fair) {
  const all = fair.lanes.flatMap(({ lane, weights }) => weights.map(({ weight }) => history.rate(ofClass(id, lane, weight, "units")))).reduce((total, it) => total + it, 0);
  const rows = fair.lanes.flatMap(({ lane, share, weights }) => weights.map(({ weight, clients }, place) => {
    const units = history.rate(ofClass(id, lane, weight, "units"));
    return [place === 0 ? lane || "one for all" : "", place === 0 ? `${Math.round(10000 * share) / 100} %` : "", String(weight), short(clients), short(units),
      all > 0 ? `${((100 * units) / all).toFixed(1)} %` : "–", short(history.rate(ofClass(id, lane, weight, "denied")))];
  }));
  return h("section", {}, h("h2", {}, "Lanes and shares"), table("Lanes and shares", ["lane", "guaranteed#", "weight#", "clients#", "units a second#", "share now#", "denied a second#"], rows),
    h("p", { class: "dim" }, "Clients are estimated: those that asked this instance within the last minute."));
}

/** The page of one rule. */
export function rulePage(main, id) {
  const figures = h("div");
  const about = h("section", {}, h("p", { class: "dim" }, "Loading."));
  const candidates = h("section");
  const subjects = h("section");
  const to = desk(load);
  show(main, h("h1", {}, `Rule ${id}`), to.place, figures, about,
    may("operate") ? h("section", {}, h("h2", {}, "Shadow, enforce, roll out"), switching(to, id)) : null, candidates, subjects,
    h("p", {}, h("a", { href: `#/denials?rule=${encodeURIComponent(id)}` }, "Denials of this rule"), ", ", h("a", { href: `#/changes?rule=${encodeURIComponent(id)}` }, "change it for a time")));
  function load() {
    call(`/v1/rules/${encodeURIComponent(id)}`).then(({ rule, scopes, isCut }) => show(about, h("h2", {}, "In force"),
      table("The rule", ["what", "value"], Object.entries(rule).filter(([, value]) => value !== null)
        .map(([name, value]) => [name, Array.isArray(value) ? value.join(", ") || "one for all" : String(value)])),
      h("h2", {}, "Numbers and the layers that set them"),
      table("Numbers", ["for", "number", "value", "set by", "limit in force"], scopes.flatMap((scope) => scope.numbers.map((it, place) =>
        [place === 0 ? scope.for : "", it.name, it.value, it.from, place === 0 ? scope.limit : ""]))),
      isCut ? h("p", { class: "dim" }, "Further plans, tenants or subjects have other numbers. Explain a request to see them.") : null),
    (error) => show(about, h("p", { class: "notice bad" }, error.message)));
  }
  load();
  candidates.hidden = true;
  /** Reads what is not in the live figures. */
  function read() {
    call("/v1/candidates").then(({ candidates: all }) => compared(candidates, all.filter((it) => it.candidate === id || it.current === id)), () => {});
    call(`/v1/rules/${encodeURIComponent(id)}/subjects`).then(({ subjects: all }) => patch(subjects, h("h2", {}, "Subjects that ask most"),
      table("Subjects", ["subject (hash)", "recent checks#", "share#"], all.map((it) => [h("a", { class: "mono", href: `#/denials?hash=${it.subject}` }, it.subject), short(it.checks), `${(100 * it.share).toFixed(0)} %`]),
        "No check of this rule was sampled yet, or the rule has one allowance for all.", all.map((it) => it.subject)),
      h("p", { class: "dim" }, "Sampled: about one check in 64.")), () => {});
  }
  let readAt = 0;
  return () => {
    const now = history.last();
    const it = now && find(now, id);
    if (!it) return;
    if (now.atEpochMillis - readAt >= SUBJECTS_EVERY) {
      readAt = now.atEpochMillis;
      read();
    }
    patch(figures,
      h("div", { class: "cards" }, card("allowed a second", short(history.rate(ofRule(id, "allowed"))), "good"), card("denied a second", short(history.rate(ofRule(id, "denied"))), "bad"),
        card("limit", it.limit === null ? "unlimited" : short(it.limit)), card("state", it.state), card("near limit", short(it.nearLimit)), card("would deny", short(it.shadowDenied))),
      h("section", {}, h("h2", {}, "Last two minutes"), chart(`Checks of ${id}`, [
        { class: "line-good", values: history.rates(ofRule(id, "allowed")) }, { class: "line-bad", values: history.rates(ofRule(id, "denied")) }])),
      it.fair ? lanes(id, it.fair) : null,
      h("section", {}, h("h2", {}, "Denials by reason"), table("Reasons", ["reason", "denials#"], Object.entries(it.reasons).map(([name, count]) => [name, short(count)]), "No denials since the start."),
        h("p", { class: "dim" }, `As of ${time(now.atEpochMillis)}.`)));
  };
}

/** How often the subjects and the candidates of a rule are read, in milliseconds. */
const SUBJECTS_EVERY = 5000;

/** Shows how candidates compare with the rules in force, by plan. */
function compared(place, pairs) {
  place.hidden = pairs.length === 0;
  const percent = (part, all) => (all > 0 ? `${short(part)} (${((100 * part) / all).toFixed(1)} %)` : "0");
  patch(place, h("h2", {}, "Candidate against the rule in force"),
    table("Candidate against the rule in force", ["candidate", "in force", "plan", "checks#", "both allow#", "both deny#", "only the candidate denies#", "only the rule in force denies#"], pairs.map((it) => {
      const all = it.bothAllow + it.bothRefuse + it.refusesMore + it.refusesFewer;
      return [link(it.candidate), link(it.current), it.plan ?? "no plan", short(all), percent(it.bothAllow, all), percent(it.bothRefuse, all), percent(it.refusesMore, all), percent(it.refusesFewer, all)];
    }), undefined, pairs.map((it) => `${it.candidate} ${it.plan}`)));
}
