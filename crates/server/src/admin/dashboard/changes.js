// What operators change: overrides, blocks, reloads, rollbacks; and who changed what. Quotas and their usage.

import { call, post, query, remove } from "./api.js";
import { field, h, short, show, table } from "./dom.js";
import { history } from "./history.js";

const may = (role) => {
  const order = ["read", "operate", "admin"];
  return order.indexOf(history.last()?.role ?? "read") >= order.indexOf(role);
};
const until = (millis) => (millis ? new Date(millis).toLocaleString() : "until it is removed");
const form = (onSubmit, label, ...children) => h("form", { class: "row", "aria-label": label, submit: (event) => {
  event.preventDefault();
  onSubmit(Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value !== "")), event.target);
} }, ...children);

export function changes(main, given) {
  const told = h("div", { role: "status" });
  const overrides = h("div");
  const blocks = h("div");
  const versions = h("div");
  const trail = h("div");
  const operate = may("operate");
  const admin = may("admin");

  /** Does something, tells how it went, and shows the new state. */
  const act = async (what, doing, undo = null) => {
    try {
      await doing();
      show(told, h("p", { class: "notice good" }, `${what}. `, undo ? h("button", { type: "button", click: () => act(`Undone: ${what}`, undo) }, "Undo") : null));
    } catch (error) {
      show(told, h("p", { class: "notice bad" }, `${what}: ${error.message}`));
    }
    load();
  };

  const block = form((it, element) => act(`Blocked ${it.subject}`, async () => { await post("/v1/blocks", { subject: it.subject, for: it.for, reason: it.reason }); element.reset(); },
    () => remove(`/v1/blocks?${query({ subject: it.subject, reason: "undone" })}`)), "Block a subject",
    field("Subject, as api_key=k1 or ip=10.0.0.0/8", "subject", { required: true, value: given.get("subject") ?? "" }), field("For", "for", { required: true, value: "1h" }), field("Reason", "reason", { required: true }),
    h("button", { class: "danger" }, "Block"));

  const override = form((it, element) => {
    const body = { rule: it.rule, tenant: it.tenant, plan: it.plan, subject: it.subject, for: it.for, reason: it.reason };
    if (it.state) body.state = it.state;
    else if (it.scale) body.scale = it.scale;
    else body.numbers = Object.fromEntries((it.numbers ?? "").split(/[ ,]+/).filter(Boolean).map((pair) => {
      const [name, value] = pair.split("=");
      return [name, /^\d+$/.test(value) ? Number(value) : value];
    }));
    let name = null;
    act(`Changed ${it.rule ?? "all rules"}`, async () => { name = (await post("/v1/overrides", body)).name; element.reset(); },
      () => remove(`/v1/overrides?${query({ name, reason: "undone" })}`));
  }, "Set an override",
    field("Rule (empty: all)", "rule", { value: given.get("rule") ?? "" }), field("Tenant", "tenant"), field("Plan", "plan"), field("Subject", "subject"),
    field("Numbers, as rate=100/s burst=20", "numbers"), field("or a share, as 50%", "scale"),
    h("label", {}, "or a state", h("select", { name: "state" }, h("option", { value: "" }, "–"), ["enforce", "shadow", "disabled"].map((name) => h("option", { value: name }, name)))),
    field("For", "for", { required: true, value: "1h" }), field("Reason", "reason", { required: true }), h("button", { class: "main" }, "Set"));

  show(main, h("h1", {}, "Changes"), told,
    operate ? null : h("p", { class: "notice" }, "This token may look, and not change anything. Sign in with a token that has the role operate or admin."),
    h("section", {}, h("h2", {}, "Overrides"), operate ? override : null, overrides),
    h("section", {}, h("h2", {}, "Blocked subjects"), operate ? block : null, blocks),
    h("section", {}, h("h2", {}, "Configs"), admin ? h("p", {}, h("button", { type: "button", click: () => act("Read the config file again", () => post("/v1/reload", { reason: "dashboard" })) }, "Read the config file again")) : null, versions),
    h("section", {}, h("h2", {}, "Who changed what"), trail));

  const ask = (question, doing) => { const reason = window.prompt(`${question} Why?`); if (reason) doing(reason); };
  const tell = (place) => (error) => show(place, h("p", { class: "dim" }, error.message));

  function load() {
    call("/v1/overrides").then((it) => show(overrides, table("Overrides", ["for", "rule", "effect", "reason", "by", "ends", "change"], it.overrides.map((one) => [
      one.subject ?? one.tenant ?? one.plan ?? "everyone", one.rule ?? "all", one.idle ? `${one.effect} (no effect: ${one.idle})` : one.effect, one.reason, one.author, until(one.expiresAtEpochMillis),
      operate ? h("button", { type: "button", click: () => ask(`End the override ${one.name}?`, (reason) => act(`Ended ${one.name}`, () => remove(`/v1/overrides?${query({ name: one.name, reason })}`))) }, "End") : ""]), "No override is in force.")), tell(overrides));
    call("/v1/blocks").then((it) => show(blocks, table("Blocks", ["subject", "reason", "by", "ends", "change"], it.blocks.map((one) => [
      h("span", { class: "mono" }, `${one.attribute} ${one.network ?? one.hash?.slice(0, 16) ?? ""}`), one.idle ? `${one.reason} (no effect: ${one.idle})` : one.reason, one.author, until(one.expiresAtEpochMillis),
      operate && one.network ? h("button", { type: "button", click: () => act(`Unblocked ${one.network}`, () => remove(`/v1/blocks?${query({ subject: `${one.attribute}=${one.network}`, reason: "dashboard" })}`)) }, "Unblock") : ""]), "Nobody is blocked.")), tell(blocks));
    call("/v1/config/versions").then((it) => show(versions, table("Versions of the config", ["version", "in force since", "by", "why", "change"], it.versions.map((one, place) => [
      h("span", { class: "mono" }, one.version), new Date(one.at).toLocaleString(), one.who, one.why ?? "",
      place === 0 ? "in force" : admin ? h("button", { type: "button", click: () => ask(`Put ${one.version} in force?`, (reason) => act(`Rolled back to ${one.version}`, () => post("/v1/rollback", { version: one.version, reason }))) }, "Put in force") : ""]))), tell(versions));
    call("/v1/audit?limit=50").then((it) => show(trail, table("Audit trail", ["time", "who", "what", "why", "to"], (it.entries ?? []).map((one) => [
      new Date(one.at).toLocaleString(), one.who, one.what, one.why ?? "", h("span", { class: "mono" }, brief(one.to))]))), tell(trail));
  }
  load();
  return () => {};
}

const brief = (value) => {
  const text = value === null || value === undefined ? "" : JSON.stringify(value);
  return text.length > 160 ? `${text.slice(0, 160)}…` : text;
};

/** Usage of quotas by tenant, with a forecast of the day on which they run out. */
export function quotas(main) {
  if (!history.last()?.ledger) {
    show(main, h("h1", {}, "Quotas"), h("p", { class: "notice" }, "This instance has no ledger, so it keeps no usage by tenant. Add a `ledger` section to the config."));
    return () => {};
  }
  const rows = h("div");
  const filter = form((it) => load(it), "Filter", field("Tenant", "tenant"), field("Period, as 2026-07 or current", "period"), h("button", { class: "main" }, "Show"));
  show(main, h("h1", {}, "Quotas"), h("section", {}, filter), h("section", {}, rows));
  function load(it) {
    call(`/v1/ledger/usage?${query({ ...it, limit: 500 })}`).then((found) => show(rows, table("Usage", ["tenant", "rule", "period", "used#", "reserved#", "granted#", "limit#", "share", "runs out"],
      (found.usage ?? found.rows ?? []).map((one) => {
        const most = one.limit === null || one.limit === undefined ? null : one.limit * Math.max(1, one.counters ?? 1) + (one.granted ?? 0);
        const share = most ? one.used / most : null;
        return [one.tenant, one.rule, one.period, short(one.used), short(one.reserved), short(one.granted), most === null ? "unlimited" : short(most),
          share === null ? "" : h("span", {}, h("meter", { min: 0, max: 1, high: 0.8, value: Math.min(1, share), "aria-label": "Share used" }), ` ${(100 * share).toFixed(0)} %`), forecast(one, most)];
      }), "No usage in this period."), found.isCut ? h("p", { class: "dim" }, "There is more: name a tenant.") : null),
    (error) => show(rows, h("p", { class: "dim" }, error.message)));
  }
  load({});
  return () => {};
}

/** The day on which the quota runs out if use goes on as since the start of the period. */
function forecast(one, most) {
  if (!most || !one.used) return "";
  if (one.used >= most) return "used up";
  const start = Date.parse(one.periodStart);
  const end = Date.parse(one.periodEnd);
  const now = Date.now();
  if (!(start < now && now < end)) return "";
  const at = start + ((now - start) * most) / one.used;
  return at < end ? new Date(at).toLocaleDateString() : "not in this period";
}
