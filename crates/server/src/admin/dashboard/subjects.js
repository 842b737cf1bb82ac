// Denials as they come, and everything about one subject.

import { hand, received, until } from "./acting.js";
import { ApiError, call, post, query } from "./api.js";
import { field, h, show, table, tell, wait, when } from "./dom.js";

const SHOWN = 200;
/** How long the tap waits before it connects again, in milliseconds: twice as long each time. */
const FIRST_PAUSE = 1000;
const LAST_PAUSE = 30_000;

const COLUMNS = ["time", "rule", "reason", "subject (hash)", "tenant", "action", "door", "limit", "left", "retry", "numbers from", "why"];

/** A denial as the cells of a row. The journal has no values of attributes, so a link can fill in only their names. */
const cells = (it) => [
  when(it.at), h("a", { href: `#/rule/${encodeURIComponent(it.ruleId)}` }, it.ruleId), it.policy ? `${it.reason} (${it.policy})` : it.reason,
  it.subjectHash ? h("a", { class: "mono", href: `#/denials?hash=${it.subjectHash}`, title: it.subjectHash }, `${it.subjectType ?? ""} ${it.subjectHash.slice(0, 8)}`) : "",
  it.tenantId ?? "", it.action ?? "", it.door, it.limit === undefined ? "" : String(it.limit), it.remaining === undefined ? "" : String(it.remaining),
  it.retryAfterMillis === undefined ? "" : wait(it.retryAfterMillis), it.numbersFrom ?? "",
  h("a", { href: `#/explain?${query({ rule: it.ruleId, hash: it.subjectHash, type: it.subjectType, action: it.action, tenant: it.tenantId })}` }, "explain"),
];

/** Asks for denials. The attributes of a subject are in the body: no URL shows them. */
function ask({ subject, ...filter }, signal = null) {
  const path = `/v1/denials?${query(filter)}`;
  return subject ? call(path, { method: "POST", body: { attributes: subject }, signal }) : call(path, { signal });
}

/** Reads one `name=value`. The value may have blanks. */
function pair(text) {
  const at = text.indexOf("=");
  if (at < 1) throw new Error(`\`${text}\` is not NAME=VALUE, such as user=ann`);
  if (at === text.length - 1) throw new Error(`fill in the value of \`${text.slice(0, at)}\`: the journal has only its hash`);
  return [text.slice(0, at), text.slice(at + 1)];
}

const pause = (millis, signal) => new Promise((done) => {
  const timer = setTimeout(done, millis);
  signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
});

/** A tap of denials: the newest first, with filters, followed live. */
export function denials(main, given) {
  const rows = h("tbody");
  const state = h("p", { role: "status", class: "dim" });
  const form = h("form", { class: "row panel", submit: (event) => { event.preventDefault(); start(); } },
    field("Rule", "rule", { value: given.get("rule") ?? "" }), field("Door", "door", { value: given.get("door") ?? "" }),
    field("Action", "action", { value: given.get("action") ?? "" }),
    field("Subject, as api_key=k1", "subject", { value: received(given) }), field("or its hash", "hash", { value: given.get("hash") ?? "" }),
    h("button", { class: "main" }, "Filter"));
  const head = h("tr", {}, COLUMNS.map((name) => h("th", { scope: "col" }, name)));
  show(main, h("h1", {}, "Denials"), form, state, h("section", {}, h("table", { "aria-label": "Denials, the newest first" }, h("thead", {}, head), rows)));
  let ended = new AbortController();
  const row = (it) => h("tr", {}, cells(it).map((cell) => h("td", {}, cell)));

  async function start() {
    ended.abort();
    const { signal } = ended = new AbortController();
    const filter = Object.fromEntries(new FormData(form));
    rows.replaceChildren();
    try { filter.subject = filter.subject ? Object.fromEntries([pair(filter.subject)]) : null; } catch (error) { tell(state, error.message); return; }
    let after = null;
    let missed = 0;
    let next = FIRST_PAUSE;
    while (!signal.aborted) {
      try {
        if (after === null) {
          // Also after a break: a restarted server counts its denials anew.
          const found = await ask({ ...filter, limit: 100 }, signal);
          rows.replaceChildren(...found.denials.map(row));
          after = found.next;
        } else {
          const more = await ask({ ...filter, after, wait: 20, limit: 100 }, signal);
          after = more.next;
          rows.prepend(...more.denials.map(row).reverse());
          while (rows.children.length > SHOWN) rows.lastChild.remove();
          missed += more.missed;
        }
        next = FIRST_PAUSE;
        tell(state, [rows.children.length ? "Live: new denials appear at the top." : "Live: no denial yet.", missed ? ` ${missed} denials came too fast to be shown.` : ""].join(""));
      } catch (error) {
        if (signal.aborted) return;
        // A wrong filter stays wrong. The page itself asks for another token.
        if (error instanceof ApiError && error.status < 500) { tell(state, error.message); return; }
        tell(state, `The connection broke, and is tried again: ${error.message}`);
        after = null;
        await pause(next, signal);
        next = Math.min(2 * next, LAST_PAUSE);
      }
    }
  }
  start();
  const update = () => {};
  update.end = () => ended.abort();
  return update;
}

/** Reads `name=value` pairs, separated by lines or blanks. */
export function attributes(text) {
  const pairs = text.split(/[\n ]+/).filter(Boolean).map(pair);
  if (pairs.length === 0) throw new Error("write at least one attribute, such as user=ann");
  return Object.fromEntries(pairs);
}

/** The attributes of a request as far as a denial tells them. */
function prefilled(given) {
  const known = { action: given.get("action"), tenant: given.get("tenant") };
  const names = new Set(["action", "tenant", ...(given.get("type") ?? "").split("+")].filter((name) => /^[a-z]\w*$/.test(name)));
  const isAsked = (name) => known[name] || (given.get("type") ?? "").split("+").includes(name);
  return [...names].filter(isAsked).map((name) => `${name}=${known[name] ?? ""}`).join(" ");
}

/** Explains a request: which rules apply, what is left, what was denied lately, which overrides concern it. */
export function explain(main, given) {
  const found = h("div");
  const subject = h("div");
  const hash = given.get("hash");
  const text = h("textarea", { name: "attributes", rows: 3, cols: 60, placeholder: "action=login user=ann", "aria-label": "Attributes of a request" });
  text.value = given.get("q") ?? prefilled(given);
  const form = h("form", { class: "panel", submit: (event) => { event.preventDefault(); run(); } },
    h("p", { class: "dim" }, "Attributes of a request, one a line or separated by blanks. The server hashes the values and keeps none of them."),
    text, h("p", {}, h("button", { class: "main" }, "Explain")));
  const asked = hash ? h("p", { class: "notice" }, "A denial by rule ", h("a", { href: `#/rule/${encodeURIComponent(given.get("rule") ?? "")}` }, given.get("rule") ?? "?"),
    `, of the subject ${given.get("type") ?? ""} `, h("span", { class: "mono" }, hash.slice(0, 16)), ". The journal has no values: fill in those that are missing, and press Explain.") : null;
  show(main, h("h1", {}, "Explain a request"), asked, form, found, subject);

  /** What is known of a subject: its last denials, and the overrides and blocks that concern it. */
  async function about(filter, concerns) {
    const [denied, overrides, blocks] = await Promise.allSettled([ask({ ...filter, limit: 10 }), call("/v1/overrides"), call("/v1/blocks")]);
    const failed = (it) => h("p", { class: "dim" }, it.reason.message);
    show(subject,
      h("section", {}, h("h2", {}, "Recent denials"), denied.status === "fulfilled" ? table("Recent denials", COLUMNS, denied.value.denials.map(cells), "None is in the journal.") : failed(denied)),
      h("section", {}, h("h2", {}, "Overrides and blocks"), overrides.status === "fulfilled" && blocks.status === "fulfilled" ? table("Overrides and blocks", ["for", "rule", "effect", "reason", "by", "ends"], [
        ...blocks.value.blocks.filter((it) => concerns(it)).map((it) => [`${it.attribute} ${it.network ?? it.hash?.slice(0, 8) ?? ""}`, "all", "blocked", it.reason, it.author, until(it.expiresAtEpochMillis)]),
        ...overrides.value.overrides.filter((it) => concerns(it)).map((it) => [it.subject ?? it.tenant ?? it.plan ?? "everyone", it.rule ?? "all", it.effect, it.reason, it.author, until(it.expiresAtEpochMillis)]),
      ], "None concerns this subject.") : failed(overrides.status === "fulfilled" ? blocks : overrides)));
  }

  async function run() {
    try {
      const asked = attributes(text.value);
      const answer = await post("/v1/explain", { attributes: asked });
      const { decision } = answer;
      const told = (answer.rules ?? []).map((line) => h("li", {}, line));
      const subjects = Object.entries(asked).filter(([name]) => !["action", "method", "path", "door"].includes(name));
      const applied = decision.rules ?? [];
      const hashes = new Set(applied.map((it) => it.subject).filter(Boolean));
      const isOther = hash && hashes.size > 0 && ![...hashes].some((it) => it.startsWith(hash));
      show(found,
        h("p", { class: `notice ${decision.allowed ? "good" : "bad"}` }, decision.allowed ? "A check would be allowed now." : `A check would be denied now: ${decision.message ?? decision.code ?? ""}`),
        isOther ? h("p", { class: "notice" }, "These attributes make another subject than that of the denial.") : null,
        answer.block ? h("p", { class: "notice bad" }, answer.block) : null,
        h("section", {}, h("h2", {}, "What each rule says"), h("ul", { class: "plain" }, told)),
        h("section", {}, h("h2", {}, "What is left"), table("Rules that apply", ["rule", "allowed", "limit#", "left#", "subject (hash)"],
          applied.map((it) => [it.ruleId, it.allowed ? "yes" : "no", it.limit ?? "unlimited", it.remaining ?? "", h("span", { class: "mono" }, (it.subject ?? "").slice(0, 16))]), "No rule applies: such requests are not limited.")),
        h("section", {}, h("h2", {}, "Look further"), h("ul", { class: "plain" }, subjects.map(([name, value]) => h("li", {},
          hand("denials", `${name}=${value}`, `denials of ${name}=${value}`), ", ", hand("changes", `${name}=${value}`, "block or override it"))))));
      const ruled = new Set(applied.map((it) => it.ruleId));
      const concerns = (it) => {
        if (it.rule && !ruled.has(it.rule)) return false;
        if (it.attribute !== undefined) return hashes.has(it.hash);
        if (it.subject) return hashes.has(it.subject.split(":").at(-1));
        return it.plan === null && (it.tenant === null || it.tenant === asked.tenant);
      };
      if (subjects.length) about({ subject: Object.fromEntries(subjects) }, concerns);
      else show(subject);
    } catch (error) {
      show(found, h("p", { class: "notice bad" }, error.message));
    }
  }
  if (hash) about({ hash }, (it) => (it.hash ?? it.subject?.split(":").at(-1) ?? "") === hash);
  if (given.get("q")) run();
  return () => {};
}
