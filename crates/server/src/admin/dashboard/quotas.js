// Quotas: what tenants have used and have left, when it runs out, and how it was used.

import { form } from "./acting.js";
import { call, query } from "./api.js";
import { chart, day, field, h, short, show, table, when } from "./dom.js";
import { history } from "./history.js";

/** How many rows are shown. A browser needs long for a longer table. */
const MOST_ROWS = 100;

const COLUMNS = ["tenant", "rule or budget", "period", "used#", "reserved#", "corrections#", "granted#", "carried over#", "available#", "share", "runs out", "history"];

/** Quotas of tenants, with a forecast of the day on which they run out. */
export function quotas(main) {
  if (!history.last()?.ledger) {
    show(main, h("h1", {}, "Quotas"), h("p", { class: "notice" }, "This instance has no ledger, so it keeps no usage by tenant. Add a `ledger` section to the config."));
    return () => {};
  }
  const rows = h("div");
  const detail = h("div", { tabindex: "-1" });
  const filter = form(load, "Filter", field("Tenant", "tenant"), field("Period, as 2026-07 or current", "period"), h("button", { class: "main" }, "Show"));
  show(main, h("h1", {}, "Quotas"), h("section", {}, filter), detail, h("section", {}, rows));

  async function load(given) {
    show(detail);
    try {
      const { quotas: found, isCut } = await call(`/v1/ledger/quotas?${query({ ...given, limit: MOST_ROWS })}`);
      show(rows, table("Quotas", COLUMNS, found.map(row), "No usage in this period."), isCut ? h("p", { class: "dim" }, "There is more: name a tenant.") : null);
    } catch (error) {
      show(rows, h("p", { class: "dim" }, error.message));
    }
  }

  const row = (it) => {
    const share = it.available ? it.usedOfAvailable / it.available : null;
    return [it.tenant, it.allowance, it.period, short(it.used), short(it.reserved), short(it.corrections), short(it.granted), short(it.carriedOver), short(it.available),
      share === null ? "" : h("span", {}, h("meter", { min: 0, max: 1, high: 0.8, value: Math.min(1, Math.max(0, share)), "aria-label": "Share used" }), ` ${(100 * share).toFixed(0)} %`),
      forecast(it), h("button", { type: "button", "aria-label": `Show the history of ${it.allowance} of ${it.tenant || "no tenant"}`, click: () => more(it) }, "Show")];
  };

  /** Shows how one quota was used, and who changed it. */
  async function more(it) {
    try {
      const { points, changes, isCut } = await call(`/v1/ledger/burndown?${query({ tenant: it.tenant, rule: it.allowance, period: it.period })}`);
      show(detail, h("section", { "aria-label": "History" }, h("h2", {}, `${it.allowance} of ${it.tenant || "requests without a tenant"}, ${it.period}`),
        it.available === null || points.length < 2 ? h("p", { class: "dim" }, "There is nothing to plot.") : plot(it, points),
        isCut ? h("p", { class: "notice" }, "There are too many entries: the plot ends early.") : null,
        it.used === it.usedOfAvailable ? null : h("p", { class: "dim" }, `Others use the same allowance: ${short(it.usedOfAvailable)} in all. The plot shows this tenant.`),
        h("h2", {}, "Grants and corrections"), table("Grants and corrections", ["time", "what", "units#", "action", "by", "why"],
          changes.map((one) => [when(one.at), one.kind, short(one.amount), one.action, one.who, one.why]), "None in this period.")));
    } catch (error) {
      show(detail, h("p", { class: "notice bad" }, error.message));
    }
    detail.focus();
  }
  load({});
  return () => {};
}

/** What was left over time, beside even use. */
function plot(it, points) {
  const start = Date.parse(it.periodStart);
  const length = Date.parse(it.periodEnd) - start;
  const first = it.available - it.granted;
  const left = points.map((point) => Math.max(0, first + point.granted - point.used));
  const even = points.map((point) => it.available * Math.max(0, 1 - (point.atEpochMillis - start) / length));
  return [chart(`Left of ${it.allowance}: ${short(left.at(-1))} of ${short(it.available)}`, [{ class: "line-dim", values: even }, { class: "line-good", values: left }], { unit: "units left" }),
    h("p", { class: "legend" }, h("span", { class: "good" }, h("i"), "left"), h("span", {}, h("i"), "with even use"))];
}

/** The day on which the quota runs out if use goes on as since the start of the period. */
function forecast(it) {
  if (!it.available || it.usedOfAvailable <= 0) return "";
  if (it.usedOfAvailable >= it.available) return "used up";
  const start = Date.parse(it.periodStart);
  const end = Date.parse(it.periodEnd);
  const now = history.last().atEpochMillis;
  if (!(start < now && now < end)) return "";
  const at = start + ((now - start) * it.available) / it.usedOfAvailable;
  return at < end ? day(at) : "not in this period";
}
