// The page of all instances on one store.

import { call } from "./api.js";
import { h, short, show, table, time } from "./dom.js";

const EVERY = 5000;

export function fleet(main) {
  const list = h("section", {}, h("p", { class: "dim" }, "Loading."));
  show(main, h("h1", {}, "Fleet"), list);
  const load = async () => {
    try {
      const { instances, problem } = await call("/v1/fleet");
      const config = instances[0].configVersion;
      show(list,
        problem ? h("p", { class: "notice bad", role: "alert" }, `Other instances are not known: ${problem}`) : null,
        table("Instances", ["instance", "state", "admin door", "version", "config", "started", "last seen", "allowed#", "denied#"],
          instances.map((it) => [
            it.isThis ? `${it.name} (this one)` : it.name,
            h("span", { class: it.state === "up" ? "good" : "bad" }, it.state),
            it.admin ?? "none", it.version,
            h("span", { class: it.configVersion === config ? "" : "bad" }, it.configVersion),
            it.startedAtEpochMillis === null ? "" : time(it.startedAtEpochMillis), time(it.atEpochMillis),
            short(it.allowed), short(it.denied)])),
        h("p", { class: "dim" }, "A silent instance has crashed, or does not reach the store. Counts are totals since its start."));
    } catch (error) {
      show(list, h("p", { class: "notice bad", role: "alert" }, error.message));
    }
  };
  load();
  const timer = setInterval(() => { if (!document.hidden) load(); }, EVERY);
  const update = () => {};
  update.end = () => clearInterval(timer);
  return update;
}
