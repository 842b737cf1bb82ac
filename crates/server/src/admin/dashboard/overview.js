// The first page, and the page of one rule.

import { call } from "./api.js";
import { bytes, chart, h, short, show, table, time, wait } from "./dom.js";
import { history, ofRule, percentile, rule as find, sum } from "./history.js";

const denied = (it) => sum(it.rules, (rule) => rule.denied) + it.blocked;
const allowed = (it) => sum(it.rules, (rule) => rule.allowed);
const fallbacks = (it) => sum(Object.values(it.fallbacks), (count) => count);
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

export function overview(main) {
  const cards = h("div", { class: "cards" });
  const lines = h("section", { "aria-label": "Allowed and denied" });
  const rules = h("section", { "aria-label": "Rules" });
  const sides = h("div");
  const notices = h("div");
  show(main, h("h1", {}, "Now"), notices, cards, lines, rules, sides);
  return () => {
    const now = history.last();
    if (!now) return;
    show(notices, notice(now));
    const deniedRate = history.rate(denied);
    const allowedRate = history.rate(allowed);
    const share = allowedRate + deniedRate > 0 ? (100 * deniedRate) / (allowedRate + deniedRate) : 0;
    const breakers = Object.entries(now.store.breakers).filter(([, state]) => state !== "closed");
    show(cards,
      card("allowed a second", short(allowedRate), "good"),
      card("denied a second", short(deniedRate), deniedRate > 0 ? "bad" : ""),
      card("share denied", `${share.toFixed(1)} %`),
      card("no rule applied, a second", short(history.rate(unmatched))),
      card("failure policies, a second", short(history.rate(fallbacks)), history.rate(fallbacks) > 0 ? "bad" : ""),
      card("store", now.store.problem ? "down" : breakers.length ? breakers[0][1] : now.store.kind, now.store.problem || breakers.length ? "bad" : "good"),
      card("store p50 / p99", now.store.kind === "redis" ? `${latency(now, 0.5)} / ${latency(now, 0.99)}` : "in memory"),
      card("keys", `${short(now.store.keys)} of ${short(now.store.maxKeys)}`),
      card("memory of states", bytes(now.store.bytes)),
      card("memory of the process", bytes(now.process.residentBytes)),
      now.ledger ? card("ledger behind", now.ledger.connected ? wait(now.ledger.lagMillis) : "unreachable", now.ledger.connected ? "" : "bad") : null);
    show(lines, h("h2", {}, "Last two minutes"),
      chart(`Allowed ${short(allowedRate)} a second, denied ${short(deniedRate)} a second`, [
        { class: "line-good", values: history.rates(allowed) },
        { class: "line-bad", values: history.rates(denied) },
      ]),
      h("p", { class: "legend" }, h("span", { class: "good" }, h("i"), "allowed"), h("span", { class: "bad" }, h("i"), "denied")));
    show(rules, h("h2", {}, "Rules"), ruleTable(now));
    show(sides,
      h("section", {}, h("h2", {}, "Busiest subjects"), table("Busiest subjects", ["rule", "subject (hash)", "recent checks#"],
        now.hotKeys.map((it) => [link(it.rule), h("a", { class: "mono", href: `#/denials?hash=${it.subject}` }, it.subject), short(it.checks)]))),
      now.store.ruleKeys.length ? h("section", {}, h("h2", {}, "Keys in Redis"), table("Keys by rule", ["rule", "keys#", "bytes#"],
        now.store.ruleKeys.map((it) => [it.rule, short(it.keys), bytes(it.bytes)]))) : null,
      h("section", {}, h("h2", {}, "Doors"), table("Doors", ["door", "requests a second#", "denied and other statuses", "bad requests#", "connections#"],
        now.doors.map((it) => [it.door, short(history.rate((d) => sum(Object.values(d.doors.find((x) => x.door === it.door)?.statuses ?? {}), (n) => n))),
          Object.entries(it.statuses).map(([status, count]) => `${status}: ${short(count)}`).join(", "), short(it.badRequests), short(it.openConnections)]))));
  };
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

function ruleTable(now) {
  const orders = {
    denied: (it) => -history.rate(ofRule(it.ruleId, "denied")),
    allowed: (it) => -history.rate(ofRule(it.ruleId, "allowed")),
    rule: (it) => it.ruleId,
  };
  const keyed = now.rules.map((it) => [orders[sorted](it), it.denied, it]);
  keyed.sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : b[1] - a[1]));
  const shown = keyed.slice(0, SHOWN).map(([, , it]) => it);
  const by = (name) => h("button", { type: "button", "aria-pressed": String(sorted === name), click: () => { sorted = name; } }, name === sorted ? `${name} ▾` : name);
  const rows = shown.map((it) => {
    const rates = history.rates(ofRule(it.ruleId, "denied"));
    return h("tr", {},
      h("td", {}, link(it.ruleId)), h("td", {}, it.state === "enforce" ? it.algorithm : `${it.algorithm}, ${it.state}`),
      h("td", { class: "number" }, short(history.rate(ofRule(it.ruleId, "allowed")))),
      h("td", { class: "number" }, short(history.rate(ofRule(it.ruleId, "denied")))),
      h("td", {}, chart(`Denials of ${it.ruleId}`, [{ class: "line-bad", values: rates }], { kind: "spark", width: 120, height: 24 })),
      h("td", { class: "number" }, short(it.denied)), h("td", { class: "number" }, short(it.nearLimit)), h("td", { class: "number" }, short(it.shadowDenied)));
  });
  const head = h("tr", {}, h("th", { scope: "col" }, by("rule")), h("th", { scope: "col" }, "algorithm"), h("th", { scope: "col", class: "number" }, by("allowed"), "/s"),
    h("th", { scope: "col", class: "number" }, by("denied"), "/s"), h("th", { scope: "col" }, "last two minutes"), h("th", { scope: "col", class: "number" }, "denied in all"),
    h("th", { scope: "col", class: "number" }, "near limit"), h("th", { scope: "col", class: "number" }, "would deny"));
  const more = now.rules.length - shown.length;
  return [h("table", { "aria-label": "Rules" }, h("thead", {}, head), h("tbody", {}, rows)), more > 0 ? h("p", { class: "dim" }, `and ${more} more`) : null];
}

/** The page of one rule. */
export function rulePage(main, id) {
  const figures = h("div");
  const about = h("section", {}, h("p", { class: "dim" }, "Loading."));
  const candidates = h("section");
  show(main, h("h1", {}, `Rule ${id}`), figures, about, candidates,
    h("p", {}, h("a", { href: `#/denials?rule=${encodeURIComponent(id)}` }, "Denials of this rule"), ", ", h("a", { href: `#/changes?rule=${encodeURIComponent(id)}` }, "change it for a time")));
  call("/v1/rules").then(({ rules }) => {
    const it = rules.find((other) => other.ruleId === id);
    show(about, h("h2", {}, "In force"), it ? table("The rule", ["what", "value"], Object.entries(it).filter(([, value]) => value !== null)
      .map(([name, value]) => [name, Array.isArray(value) ? value.join(", ") || "one for all" : String(value)])) : h("p", {}, "No such rule is in force."));
  }, (error) => show(about, h("p", { class: "notice bad" }, error.message)));
  call("/v1/candidates").then((all) => {
    const own = (all.candidates ?? []).filter((it) => it.candidate === id || it.current === id || it.ruleId === id || it.candidateOf === id);
    show(candidates, ...(own.length ? [h("h2", {}, "Candidates"), table("Candidates", Object.keys(own[0]), own.map((it) => Object.values(it).map((value) => String(value ?? ""))))] : []));
    candidates.hidden = own.length === 0;
  }, () => { candidates.hidden = true; });
  return () => {
    const now = history.last();
    const it = now && find(now, id);
    if (!it) return;
    show(figures,
      h("div", { class: "cards" }, card("allowed a second", short(history.rate(ofRule(id, "allowed"))), "good"), card("denied a second", short(history.rate(ofRule(id, "denied"))), "bad"),
        card("limit", it.limit === null ? "unlimited" : short(it.limit)), card("state", it.state), card("near limit", short(it.nearLimit)), card("would deny", short(it.shadowDenied))),
      h("section", {}, h("h2", {}, "Last two minutes"), chart(`Checks of ${id}`, [
        { class: "line-good", values: history.rates(ofRule(id, "allowed")) }, { class: "line-bad", values: history.rates(ofRule(id, "denied")) }])),
      h("section", {}, h("h2", {}, "Denials by reason"), table("Reasons", ["reason", "denials#"], Object.entries(it.reasons).map(([name, count]) => [name, short(count)]), "No denials since the start."),
        h("p", { class: "dim" }, `As of ${time(now.atEpochMillis)}.`)),
      h("section", {}, h("h2", {}, "Subjects that ask most"), table("Subjects", ["subject (hash)", "recent checks#"],
        now.hotKeys.filter((hot) => hot.rule === id).map((hot) => [h("span", { class: "mono" }, hot.subject), short(hot.checks)]), "None of the ten busiest subjects is of this rule.")));
  };
}
