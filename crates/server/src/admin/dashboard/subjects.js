// Denials as they come, and everything about one subject.

import { ApiError, call, post, query } from "./api.js";
import { field, h, show, table, wait } from "./dom.js";

const SHOWN = 200;

/** A tap of denials: the newest first, with filters, followed live. */
export function denials(main, given) {
  const rows = h("tbody");
  const state = h("p", { role: "status", class: "dim" });
  const form = h("form", { class: "row panel", submit: (event) => { event.preventDefault(); start(); } },
    field("Rule", "rule", { value: given.get("rule") ?? "" }), field("Door", "door", { value: given.get("door") ?? "" }),
    field("Action", "action", { value: given.get("action") ?? "" }),
    field("Subject, as api_key=k1", "subject", { value: given.get("subject") ?? "" }), field("or its hash", "hash", { value: given.get("hash") ?? "" }),
    h("button", { class: "main" }, "Filter"));
  const columns = ["time", "rule", "reason", "subject (hash)", "action", "door", "limit", "left", "retry", "numbers from"];
  const head = h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)));
  show(main, h("h1", {}, "Denials"), form, state, h("section", {}, h("table", { "aria-label": "Denials, the newest first" }, h("thead", {}, head), rows)));
  let ended = new AbortController();

  const row = (it) => h("tr", {}, [
    new Date(it.at).toLocaleString(), h("a", { href: `#/rule/${encodeURIComponent(it.ruleId)}` }, it.ruleId), it.policy ? `${it.reason} (${it.policy})` : it.reason,
    it.subjectHash ? h("a", { class: "mono", href: `#/denials?hash=${it.subjectHash}`, title: it.subjectHash }, `${it.subjectType ?? ""} ${it.subjectHash.slice(0, 8)}`) : "",
    it.action ?? "", it.door, it.limit === undefined ? "" : String(it.limit), it.remaining === undefined ? "" : String(it.remaining),
    it.retryAfterMillis === undefined ? "" : wait(it.retryAfterMillis), it.numbersFrom ?? "",
  ].map((cell) => h("td", {}, cell)));

  async function start() {
    ended.abort();
    const own = ended = new AbortController();
    rows.replaceChildren();
    const filter = Object.fromEntries(new FormData(form));
    try {
      const found = await call(`/v1/denials?${query({ ...filter, limit: 100 })}`, { signal: own.signal });
      rows.append(...found.denials.map(row));
      let after = found.next;
      for (;;) {
        state.textContent = rows.children.length ? "Live: new denials appear at the top." : "Live: no denial yet.";
        const more = await call(`/v1/denials?${query({ ...filter, after, wait: 20, limit: 100 })}`, { signal: own.signal });
        after = more.next;
        for (const it of more.denials) rows.prepend(row(it));
        while (rows.children.length > SHOWN) rows.lastChild.remove();
        if (more.missed) state.textContent = `${more.missed} denials came too fast to be shown.`;
      }
    } catch (error) {
      if (error.name !== "AbortError") state.textContent = error instanceof ApiError ? error.message : `The connection broke: ${error.message}`;
    }
  }
  start();
  const update = () => {};
  update.end = () => ended.abort();
  return update;
}

/** Reads `name=value` pairs, separated by lines or blanks. */
export function attributes(text) {
  const pairs = text.split(/[\n ]+/).filter(Boolean).map((pair) => {
    const at = pair.indexOf("=");
    if (at < 1) throw new Error(`\`${pair}\` is not NAME=VALUE, such as user=ann`);
    return [pair.slice(0, at), pair.slice(at + 1)];
  });
  if (pairs.length === 0) throw new Error("write at least one attribute, such as user=ann");
  return Object.fromEntries(pairs);
}

/** Explains a request: which rules apply, what is left, what was denied lately. */
export function explain(main, given) {
  const found = h("div");
  const text = h("textarea", { name: "attributes", rows: 3, cols: 60, placeholder: "action=login user=ann", "aria-label": "Attributes of a request" });
  text.value = given.get("q") ?? "";
  const form = h("form", { class: "panel", submit: (event) => { event.preventDefault(); run(); } },
    h("p", { class: "dim" }, "Attributes of a request, one a line or separated by blanks. The server hashes the values and keeps none of them."),
    text, h("p", {}, h("button", { class: "main" }, "Explain")));
  show(main, h("h1", {}, "Explain a request"), form, found);

  async function run() {
    try {
      const asked = attributes(text.value);
      const answer = await post("/v1/explain", { attributes: asked });
      const { decision } = answer;
      const told = (answer.rules ?? []).map((line) => h("li", {}, line));
      const subjects = Object.entries(asked).filter(([name]) => !["action", "method", "path", "door"].includes(name));
      show(found,
        h("p", { class: `notice ${decision.allowed ? "good" : "bad"}` }, decision.allowed ? "A check would be allowed now." : `A check would be denied now: ${decision.message ?? decision.code ?? ""}`),
        answer.block ? h("p", { class: "notice bad" }, answer.block) : null,
        h("section", {}, h("h2", {}, "What each rule says"), h("ul", { class: "plain" }, told)),
        h("section", {}, h("h2", {}, "What is left"), table("Rules that apply", ["rule", "allowed", "limit#", "left#", "subject (hash)"],
          (decision.rules ?? []).map((it) => [it.ruleId, it.allowed ? "yes" : "no", it.limit ?? "unlimited", it.remaining ?? "", h("span", { class: "mono" }, (it.subject ?? "").slice(0, 16))]), "No rule applies: such requests are not limited.")),
        h("section", {}, h("h2", {}, "Look further"), h("ul", { class: "plain" }, subjects.map(([name, value]) => h("li", {},
          h("a", { href: `#/denials?${query({ subject: `${name}=${value}` })}` }, `denials of ${name}=${value}`), ", ",
          h("a", { href: `#/changes?${query({ subject: `${name}=${value}` })}` }, "block or override it"))))));
    } catch (error) {
      show(found, h("p", { class: "notice bad" }, error.message));
    }
  }
  if (text.value) run();
  return () => {};
}
