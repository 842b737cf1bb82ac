// Makes elements. Text always goes through text nodes, so nothing that a server or a client says is markup.

/** Makes an element. Attributes that are functions become listeners; `null` and `false` are left out. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  set(element, attributes);
  element.append(...children.flat().filter((it) => it !== null && it !== undefined && it !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function s(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  set(element, attributes);
  element.append(...children);
  return element;
}

const LISTENERS = Symbol("listeners");

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") listen(element, name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
}

/** Calls `act` at an event, instead of what was called before. */
function listen(element, name, act) {
  const all = (element[LISTENERS] ??= new Map());
  if (!all.has(name)) element.addEventListener(name, (event) => element[LISTENERS].get(name)(event));
  all.set(name, act);
}

const given = (children) => children.flat().filter((it) => it !== null && it !== undefined && it !== false);

/** Replaces the content of an element. */
export function show(element, ...children) {
  element.replaceChildren(...given(children));
}

/**
 * Changes the content of an element into `children`, and keeps the elements that stay: the focus, a selection and the
 * place of a screen reader stay too. An element with a `data-key` stays itself when its neighbours change.
 */
export function patch(element, ...children) {
  const focused = document.activeElement;
  fit(element, given(children));
  // An element that moved has lost the focus.
  if (focused !== document.activeElement && focused !== element && element.contains(focused)) focused.focus({ preventScroll: true });
}

function fit(element, children) {
  const keyed = new Map();
  for (const child of element.children) if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
  let next = element.firstChild;
  for (const child of children) {
    const node = child instanceof Node ? child : document.createTextNode(child);
    const same = node.dataset?.key === undefined ? next : keyed.get(node.dataset.key);
    if (!same || same.nodeName !== node.nodeName || same.dataset?.key !== node.dataset?.key) {
      element.insertBefore(node, next);
      continue;
    }
    if (same === next) next = next.nextSibling;
    else element.insertBefore(same, next);
    become(same, node);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

/** Makes an element or a text equal to `node`. */
function become(old, node) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!node.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const [name, act] of node[LISTENERS] ?? []) listen(old, name, act);
  fit(old, [...node.childNodes]);
}

/** Writes a text, if it is another one. A live region announces what is written, even if it is the same. */
export function tell(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * A table with a caption for screen readers. `columns` are names; a name that ends with # is a number. `keys` name the
 * rows of a table that is patched.
 */
export function table(caption, columns, rows, empty = "Nothing yet.", keys = []) {
  if (rows.length === 0) return h("p", { class: "dim" }, empty);
  const kind = (name) => (name.endsWith("#") ? { class: "number" } : {});
  const head = columns.map((name) => h("th", { scope: "col", ...kind(name) }, name.replace(/#$/, "")));
  const body = rows.map((cells, row) =>
    h("tr", { "data-key": keys[row] }, cells.map((cell, place) => h("td", kind(columns[place]), cell ?? ""))));
  return h("table", { "aria-label": caption }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
}

/** A line of one or more series over the same time. Each series has a class and values. */
export function chart(label, series, { kind = "chart", width = 600, height = 140, unit = "a second" } = {}) {
  const all = series.flatMap((it) => it.values);
  const most = Math.max(1e-9, ...all);
  const spark = kind === "spark";
  const points = (values) => {
    const step = values.length > 1 ? width / (values.length - 1) : width;
    const at = (value, place) => `${(place * step).toFixed(1)} ${(height - 2 - (value / most) * (height - (spark ? 4 : 22))).toFixed(1)}`;
    return values.map((value, place) => `${place === 0 ? "M" : "L"}${at(value, place)}`).join("");
  };
  const lines = series.map((it) => s("path", { class: it.class, d: points(it.values) }));
  const scale = spark ? [] : [s("line", { x1: 0, y1: height - 2, x2: width, y2: height - 2 })];
  const drawn = s("svg", { class: kind, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...scale, ...lines);
  // The picture is stretched to its place, so the text stands beside it.
  return spark ? drawn : h("div", {}, h("p", { class: "dim scale" }, `up to ${short(most)} ${unit}`), drawn);
}

/** A number as a person reads it. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${(value / (name === "k" ? 1e3 : unit)).toFixed(1)}${name}`;
  }
  return size !== 0 && size < 10 && !Number.isInteger(value) ? value.toFixed(1) : String(Math.round(value));
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (value >= 1024 && place < units.length - 1) { value /= 1024; place += 1; }
  return `${place === 0 ? value : value.toFixed(1)} ${units[place]}`;
}

// One format for all: to make a format takes longer than to use it a hundred times.
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const days = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const calendar = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const time = (millis) => clock.format(millis);

export const day = (millis) => days.format(millis);

/** Day and time of an instant, which is a number of milliseconds or a text. */
export const when = (at) => calendar.format(new Date(at));

export function wait(millis) {
  if (millis === null || millis === undefined) return "–";
  for (const [size, name] of [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]]) {
    if (millis >= size) return `${(millis / size).toFixed(millis % size ? 1 : 0)} ${name}`;
  }
  return `${Math.round(millis)} ms`;
}

/** A field of a form. */
export function field(label, name, attributes = {}) {
  return h("label", {}, label, h("input", { name, autocomplete: "off", spellcheck: "false", ...attributes }));
}
