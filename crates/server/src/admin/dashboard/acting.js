// Changes by operators: first a preview of what changes, then the change with a reason, then a button that undoes it.

import { call, post, query, remove } from "./api.js";
import { field, h, show, when } from "./dom.js";
import { history } from "./history.js";

export const may = (role) => {
  const order = ["read", "operate", "admin"];
  return order.indexOf(history.last()?.role ?? "read") >= order.indexOf(role);
};
/** The subject that another page hands over to a form. It may be a secret, so it is in no address. */
export const handed = { subject: null };

/** A link to a page that finds the subject in its form. */
export const hand = (page, subject, text) => h("a", { href: `#/${page}`, click: () => { handed.subject = subject; } }, text);

/** Returns the subject of the address, or the one that was handed over. */
export function received(given) {
  const subject = given.get("subject") ?? handed.subject ?? "";
  handed.subject = null;
  return subject;
}

export const until = (millis) => (millis ? when(millis) : "until it is removed");
export const form = (onSubmit, label, ...children) => h("form", { class: "row", "aria-label": label, submit: (event) => {
  event.preventDefault();
  onSubmit(Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value !== "")), event.target);
} }, ...children);

/** The place of a page where previews and results are shown. `done` is called after each change. */
export function desk(done) {
  const told = h("div", { role: "status", tabindex: "-1" });
  const asked = h("div");
  const tell = (kind, ...text) => show(told, h("p", { class: `notice ${kind}` }, ...text));

  const act = async (what, doing, undo = null) => {
    try {
      // False if there is nothing to undo.
      const changed = await doing();
      tell("good", `${what}: done. `, undo && changed !== false ? h("button", { type: "button", click: () => act(`Undone: ${what}`, undo) }, "Undo") : null);
    } catch (error) {
      tell("bad", `${what}: ${error.message}`);
    }
    told.focus();
    done();
  };

  /** Shows what would change, and does it if the operator agrees. `look` returns what to show. */
  const propose = async ({ what, button, look, asksReason = false, doing, undo = null }) => {
    const before = document.activeElement;
    let lines;
    show(told);
    show(asked);
    try { lines = await look(); } catch (error) { tell("bad", `${what}: ${error.message}`); return; }
    const cancel = () => { show(asked); before?.focus(); };
    show(asked, h("section", { "aria-label": "Preview", keydown: (event) => { if (event.key === "Escape") cancel(); } },
      h("h2", {}, `Preview: ${what}`), lines,
      form(({ reason }) => { show(asked); act(what, () => doing(reason), undo); }, "Confirm",
        asksReason ? field("Reason", "reason", { required: true, maxlength: 500 }) : null,
        h("button", { class: "main" }, button), h("button", { type: "button", click: cancel }, "Cancel"))));
    asked.querySelector("input, button").focus();
  };

  return { place: h("div", {}, told, asked), propose };
}

const list = (lines, empty) => (lines.length ? h("ul", { class: "plain" }, lines.map((line) => h("li", {}, line))) : h("p", { class: "dim" }, empty));

/** The answer of a preview, as elements. */
const previewed = ({ wanted, replaces, changes, isCut }, lasts) => [
  list(changes.map((it) => `${it.ruleId === null ? "" : `rule ${it.ruleId}, `}${it.for}: ${it.what} ${it.before ?? "none"} → ${it.after ?? "none"}`),
    "Nothing changes: these values are in force already, or another layer decides."),
  isCut ? h("p", { class: "dim" }, "and more") : null,
  h("p", {}, `For ${lasts}, until ${until(wanted.expiresAtEpochMillis)}. Reason: ${wanted.reason}`),
  replaces ? h("p", { class: "notice" }, `Replaces ${replaces.name}: ${replaces.effect}, by ${replaces.author} (${replaces.reason}), ends ${until(replaces.expiresAtEpochMillis)}. Undo brings it back.`) : null,
];

/** Brings back an override or a block, from what the server has told of it. */
const restore = (stored) => post("/v1/overrides/restore", { stored });

/** Proposes an override. */
export const override = (to, body, element) => {
  let name = null;
  let replaced = null;
  to.propose({
    what: `Change ${body.rule ?? "all rules"}`, button: "Set",
    look: async () => {
      const found = await post("/v1/overrides/preview", body);
      replaced = found.replaces?.stored;
      return previewed(found, body.for);
    },
    doing: async () => { name = (await post("/v1/overrides", body)).name; element.reset(); },
    undo: () => (replaced ? restore(replaced) : remove(`/v1/overrides?${query({ name, reason: "undone" })}`)),
  });
};

/** Proposes a block. */
export const block = (to, body, element) => {
  let name = null;
  let replaced = null;
  to.propose({
    what: `Block ${body.subject}`, button: "Block",
    look: async () => {
      const found = await post("/v1/blocks/preview", body);
      replaced = found.replaces?.stored;
      return previewed(found, body.for);
    },
    doing: async () => { name = (await post("/v1/blocks", body)).name; element.reset(); },
    undo: () => (replaced ? restore(replaced) : remove(`/v1/blocks?${query({ name, reason: "undone" })}`)),
  });
};

/** Proposes to end an override or a block. */
export const ending = (to, { label, what, path, name }) => {
  let ended = null;
  to.propose({
    what: `${label} ${name}`, button: label, asksReason: true, look: async () => h("p", {}, what),
    doing: async (reason) => {
      ended = (await remove(`${path}?${query({ name, reason })}`)).stored;
      // What nobody can read cannot be brought back.
      return ended !== undefined;
    },
    undo: () => restore(ended),
  });
};

/** Proposes to put the config file in force, or an older version. `held` is the older version that is in force now. */
export const config = (to, version, held) => {
  let now = null;
  const reload = (reason) => post("/v1/reload", { reason });
  const rollback = (to, reason) => post("/v1/rollback", { version: to, reason });
  to.propose({
    what: version ? `Put ${version} in force` : "Read the config file again", button: version ? "Put in force" : "Reload", asksReason: true,
    look: async () => {
      const found = await call(`/v1/config/diff?${query({ version })}`);
      now = found.inForce;
      return [h("p", { class: "mono" }, now === found.configVersion ? now : `${now} → ${found.configVersion}`),
        list(found.differences, now === found.configVersion ? "This config is in force already." : "No difference in words."),
        found.needsRestart.length ? h("p", { class: "notice" }, `Takes effect only after a restart: ${found.needsRestart.join(", ")}`) : null];
    },
    doing: async (reason) => (await (version ? rollback(version, reason) : reload(reason))).outcome === "applied",
    // A reload brings back the file, but not an older version that was in force instead of it.
    undo: () => (version && !held ? reload("undone") : rollback(now, "undone")),
  });
};
