// What operators change: overrides, blocks, reloads, rollbacks; and who changed what.

import { block, config, desk, ending, form, may, override, received, until } from "./acting.js";
import { call } from "./api.js";
import { field, h, show, table, when } from "./dom.js";

/** Reads numbers, as `rate=100/s burst=20`. */
const numbers = (text) => Object.fromEntries(text.split(/[ ,]+/).filter(Boolean).map((pair) => {
  const [name, value = ""] = pair.split("=");
  return [name, /^\d+$/.test(value) ? Number(value) : value];
}));

export function changes(main, given) {
  const to = desk(load);
  const overrides = h("div");
  const blocks = h("div");
  const versions = h("div");
  const trail = h("div");
  const operate = may("operate");
  const admin = may("admin");
  let held = null;
  const subject = received(given);

  const blocking = form((it, element) => block(to, { subject: it.subject, for: it.for, reason: it.reason }, element), "Block a subject",
    field("Subject, as api_key=k1 or ip=10.0.0.0/8", "subject", { required: true, value: subject }), field("For", "for", { required: true, value: "1h" }), field("Reason", "reason", { required: true }),
    h("button", { class: "danger" }, "Preview"));

  const overriding = form(({ numbers: written, ...it }, element) => override(to, { ...it, ...(written ? { numbers: numbers(written) } : {}) }, element), "Set an override",
    field("Rule (empty: all)", "rule", { value: given.get("rule") ?? "" }), field("Tenant", "tenant"), field("Plan", "plan"), field("Subject", "subject", { value: subject }),
    field("Numbers, as rate=100/s burst=20", "numbers"), field("or a share, as 50%", "scale"), states(), field("or a rollout, as 25%", "rollout"),
    field("For", "for", { required: true, value: "1h" }), field("Reason", "reason", { required: true }), h("button", { class: "main" }, "Preview"));

  show(main, h("h1", {}, "Changes"), to.place,
    operate ? null : h("p", { class: "notice" }, "This token may look, and not change anything. Sign in with a token that has the role operate or admin."),
    h("section", {}, h("h2", {}, "Overrides"), operate ? overriding : null, overrides),
    h("section", {}, h("h2", {}, "Blocked subjects"), operate ? blocking : null, blocks),
    h("section", {}, h("h2", {}, "Configs"), admin ? h("p", {}, h("button", { type: "button", click: () => config(to, null, held) }, "Read the config file again")) : null, versions),
    h("section", {}, h("h2", {}, "Who changed what"), trail));

  /** A button that ends an override or a block, after a reason is given. */
  const end = (label, what, path, name) => h("button", { type: "button", click: () => ending(to, { label, what, path, name }) }, label);
  const tell = (place) => (error) => show(place, h("p", { class: "dim" }, error.message));

  function load() {
    call("/v1/overrides").then((it) => show(overrides, table("Overrides", ["for", "rule", "effect", "reason", "by", "ends", "change"], it.overrides.map((one) => [
      one.subject ?? one.tenant ?? one.plan ?? "everyone", one.rule ?? "all", one.idle ? `${one.effect} (no effect: ${one.idle})` : one.effect, one.reason, one.author, until(one.expiresAtEpochMillis),
      operate ? end("End", `Now: ${one.effect}. Then the other layers decide.`, "/v1/overrides", one.name) : ""]), "No override is in force.")), tell(overrides));
    call("/v1/blocks").then((it) => show(blocks, table("Blocks", ["subject", "reason", "by", "ends", "change"], it.blocks.map((one) => [
      h("span", { class: "mono" }, `${one.attribute} ${one.network ?? one.hash?.slice(0, 16) ?? ""}`), one.idle ? `${one.reason} (no effect: ${one.idle})` : one.reason, one.author, until(one.expiresAtEpochMillis),
      operate ? end("Unblock", "Now: denied before any rule. Then the rules decide.", "/v1/blocks", one.name) : ""]), "Nobody is blocked.")), tell(blocks));
    call("/v1/config/versions").then((it) => {
      held = it.rolledBackFrom ? it.inForce : null;
      show(versions, it.rolledBackFrom ? h("p", { class: "notice" }, `An older version is in force. The config file has ${it.rolledBackFrom}.`) : null,
        table("Versions of the config", ["version", "in force since", "by", "why", "change"], it.versions.map((one) => [
          h("span", { class: "mono" }, one.version), when(one.at), one.who, one.why ?? "",
          one.version === it.inForce ? "in force" : admin ? h("button", { type: "button", click: () => config(to, one.version === it.rolledBackFrom ? null : one.version, held) }, "Put in force") : ""])));
    }, tell(versions));
    call("/v1/audit?limit=50").then((it) => show(trail, table("Audit trail", ["time", "who", "what", "why", "to"], (it.entries ?? []).map((one) => [
      when(one.at), one.who, one.what, one.why ?? "", h("span", { class: "mono" }, brief(one.to))]))), tell(trail));
  }
  load();
  return () => {};
}

/** A choice of the states of a rule. */
const states = () => h("label", {}, "or a state", h("select", { name: "state" }, h("option", { value: "" }, "–"), ["enforce", "shadow", "disabled"].map((name) => h("option", { value: name }, name))));

/** A form that changes the state or the rollout of one rule. */
export const switching = (to, rule) => form((it, element) => override(to, { rule, ...it }, element), "Change the state or the rollout",
  field("Rollout, as 25%", "rollout"), states(), field("For", "for", { required: true, value: "1h" }), field("Reason", "reason", { required: true }),
  h("button", { class: "main" }, "Preview"));

/** The last changes of this deployment, for the first page. */
export async function lastChanges(place) {
  try {
    const { entries = [] } = await call("/v1/audit?limit=3");
    show(place, table("Last changes", ["time", "who", "what", "about", "why"], entries.map((one) => [when(one.at), one.who, one.what, about(one), one.why ?? ""]), "No change is in the audit trail."));
  } catch (error) {
    show(place, h("p", { class: "dim" }, error.message));
  }
}

/** What an entry of the audit trail is about, in a few words. */
function about({ what, from, to, rules }) {
  const it = to ?? from;
  if (!it || typeof it !== "object") return brief(it);
  const kind = what.split(".")[0];
  if (kind === "config") return [it.version, ...(it.differences ?? []).slice(0, 1)].join(": ");
  if (kind === "block") return `${it.attribute} ${it.network ?? it.hash?.slice(0, 8)}`;
  if (kind !== "override") return (rules ?? []).map((one) => one.rule).slice(0, 3).join(", ");
  const change = ["numbers", "scale", "state", "rollout", "mode"].find((name) => it[name] !== undefined);
  const value = change === "numbers" ? Object.entries(it.numbers).map((pair) => pair.join(" ")).join(", ") : `${change} ${it[change]}`;
  return `rule ${it.rule ?? "*"}, ${it.tenant ?? it.plan ?? it.attribute ?? "everyone"}: ${value}`;
}

const brief = (value) => {
  const text = value === null || value === undefined ? "" : JSON.stringify(value);
  return text.length > 160 ? `${text.slice(0, 160)}…` : text;
};
