// The last two minutes of the live figures, and the rates between them.

const LENGTH = 120;

export const history = {
  documents: [],
  /** Adds a document. Totals that went back belong to a restarted instance: what was before is dropped. */
  add(document) {
    const last = this.documents.at(-1);
    if (last && document.process.startedAtEpochMillis !== last.process.startedAtEpochMillis) this.documents = [];
    this.documents.push(document);
    if (this.documents.length > LENGTH) this.documents.shift();
  },
  last() { return this.documents.at(-1) ?? null; },
  /** What `of` grew a second, between each two of the last documents. */
  rates(of, count = LENGTH) {
    const all = this.documents.slice(-count - 1);
    const values = all.map(of);
    return values.slice(1).map((value, place) => {
      const seconds = (all[place + 1].atEpochMillis - all[place].atEpochMillis) / 1000;
      return seconds > 0 ? Math.max(0, (value - values[place]) / seconds) : 0;
    });
  },
  /** The mean rate of the last `count` seconds. */
  rate(of, count = 10) {
    const rates = this.rates(of, count);
    return rates.length ? rates.reduce((sum, it) => sum + it, 0) / rates.length : 0;
  },
};

export const sum = (items, of) => items.reduce((total, it) => total + of(it), 0);
/** The rules of each document by their ids. A page asks for hundreds of rules in a hundred documents, every second. */
const indexes = new WeakMap();

export function rule(document, id) {
  let index = indexes.get(document);
  if (!index) indexes.set(document, index = new Map(document.rules.map((it) => [it.ruleId, it])));
  return index.get(id);
}

export const ofRule = (id, what) => (document) => rule(document, id)?.[what] ?? 0;

/** The bound under which `share` of the values lie that came between two histograms. */
export function percentile(before, after, share) {
  if (!after) return null;
  const count = after.count - (before?.count ?? 0);
  if (count <= 0) return null;
  const old = new Map(before?.upTo ?? []);
  for (const [bound, total] of after.upTo) {
    if (total - (old.get(bound) ?? 0) >= share * count) return bound;
  }
  return Infinity;
}
