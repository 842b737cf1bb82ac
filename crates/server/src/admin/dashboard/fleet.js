// The page of all instances on one store.

import { call } from "./api.js";
import { h, patch, short, show, table, wait, when } from "./dom.js";

const EVERY = 5000;

/** What is wrong with an instance, in words. */
function problems({ health }) {
  if (!health) return ["not known: an older version"];
  const { storeProblem, breakers, ledger, configRejected } = health;
  return [
    storeProblem ? `store: ${storeProblem}` : null,
    ...Object.entries(breakers).map(([server, state]) => `breaker of ${server}: ${state}`),
    ledger && !ledger.connected ? "the ledger does not answer" : null,
    ledger && ledger.lagMillis > 10_000 ? `the ledger is ${wait(ledger.lagMillis)} behind` : null,
    configRejected ? `config file rejected: ${configRejected}` : null,
  ].filter(Boolean);
}

function health(it) {
  const found = problems(it);
  if (found.length) return h("ul", { class: "plain bad" }, found.map((text) => h("li", {}, text)));
  return h("span", { class: "good" }, ["ok", it.health.store, it.health.ledger ? "ledger" : null].filter(Boolean).join(", "));
}

export function fleet(main) {
  const list = h("section", {}, h("p", { class: "dim" }, "Loading."));
  show(main, h("h1", {}, "Fleet"), list);
  const load = async () => {
    try {
      const { instances, problem } = await call("/v1/fleet");
      const config = instances[0].configVersion;
      patch(list,
        problem ? h("p", { class: "notice bad", role: "alert" }, `Other instances are not known: ${problem}`) : null,
        table("Instances", ["instance", "state", "health", "admin door", "version", "config", "started", "last seen", "allowed#", "denied#", "store failed#"],
          instances.map((it) => [
            it.isThis ? `${it.name} (this one)` : it.name,
            h("span", { class: it.state === "up" ? "good" : "bad" }, it.state),
            health(it), it.admin ?? "none", it.version,
            h("span", { class: it.configVersion === config ? "" : "bad" }, it.configVersion),
            it.startedAtEpochMillis === null ? "" : when(it.startedAtEpochMillis), when(it.atEpochMillis),
            short(it.allowed), short(it.denied), short(it.storeFailed)]), "", instances.map((it) => it.name)),
        h("p", { class: "dim" }, "A silent instance has crashed, or does not reach the store. Counts are requests since its start; a request is counted once, however many rules apply to it."));
    } catch (error) {
      patch(list, h("p", { class: "notice bad", role: "alert" }, error.message));
    }
  };
  load();
  const timer = setInterval(() => { if (!document.hidden) load(); }, EVERY);
  const update = () => {};
  update.end = () => clearInterval(timer);
  return update;
}
