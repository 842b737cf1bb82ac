// The dashboard: signs in, follows the live figures, and shows the page that the address names.

import { advise } from "./advise.js";
import { ApiError, call, events, token } from "./api.js";
import { h, show, tell, time } from "./dom.js";
import { history } from "./history.js";
import { overview, rulePage } from "./overview.js";
import { denials, explain } from "./subjects.js";
import { changes } from "./changes.js";
import { quotas } from "./quotas.js";
import { fleet } from "./fleet.js";

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const status = document.getElementById("status");
const clock = document.getElementById("clock");
const signOut = document.getElementById("sign-out");

const PAGES = [
  ["", "Now", (place) => overview(place)],
  ["denials", "Denials", (place, rest, given) => denials(place, given)],
  ["explain", "Explain", (place, rest, given) => explain(place, given)],
  ["quotas", "Quotas", (place) => quotas(place)],
  ["changes", "Changes", (place, rest, given) => changes(place, given)],
  ["fleet", "Fleet", (place) => fleet(place)],
  ["advise", "Find a rule", (place) => advise(place)],
];

const nothing = () => {};
let update = nothing;

/** Reads a part of an address; null if it is not well written. */
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return null; }
}

/** Ends the page that is shown, and what it does from time to time. */
function close() {
  update.end?.();
  update = nothing;
}

function open() {
  const [path, text = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const given = new URLSearchParams(text);
  close();
  const page = PAGES.find(([key]) => key === name);
  const rule = name === "rule" ? decoded(rest.join("/")) : null;
  show(nav, PAGES.map(([key, label]) => h("a", { href: `#/${key}`, "aria-current": key === name ? "page" : null }, label)));
  document.title = `Tollgate: ${page ? page[1] : rule ? "rule" : "not found"}`;
  if (rule) update = rulePage(main, rule);
  else if (page) update = page[2](main, rest, given);
  else show(main, h("h1", {}, "Not found"), h("p", {}, "There is no such page."));
  update();
}

/** Forgets the token and everything that it has shown. */
function leave(message) {
  token.set(null);
  history.documents = [];
  close();
  signOut.hidden = true;
  tell(status, "");
  tell(clock, "");
  signIn(message);
}

function signIn(message) {
  const form = h("form", { class: "panel sign-in", submit: (event) => {
    event.preventDefault();
    token.set(new FormData(form).get("token").trim());
    begin();
  } },
    h("h1", {}, "Sign in"), message ? h("p", { class: "notice bad", role: "alert" }, message) : null,
    h("p", { class: "dim" }, "With a token of this admin door. The token stays in this tab and ends with it."),
    h("label", {}, "Token", h("input", { name: "token", type: "password", required: true, autocomplete: "off", autofocus: true })),
    h("p", {}, h("button", { class: "main" }, "Sign in")));
  show(nav);
  show(main, form);
  form.querySelector("input").focus();
}

async function follow() {
  for (;;) {
    const ended = new AbortController();
    const hidden = () => { if (document.hidden) ended.abort(); };
    document.addEventListener("visibilitychange", hidden);
    try {
      for await (const document of events("/v1/live", ended.signal)) {
        history.add(document);
        tell(status, `${document.who} (${document.role}), config ${document.configVersion}`);
        // Beside the live region: a screen reader would announce every second.
        tell(clock, time(document.atEpochMillis));
        update();
      }
      tell(status, "The server ended the stream.");
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) { leave(error.message); return; }
      if (error.name !== "AbortError") tell(status, `Not connected: ${error.message}`);
    } finally {
      document.removeEventListener("visibilitychange", hidden);
    }
    // A page that nobody sees asks for nothing.
    if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
    else await new Promise((done) => setTimeout(done, 2000));
  }
}

async function begin() {
  try {
    history.add(await call("/v1/overview"));
  } catch (error) {
    signIn(error.status === 401 && !token.get() ? null : error.message);
    return;
  }
  signOut.hidden = !token.get();
  open();
  main.focus({ preventScroll: true });
  follow();
}

signOut.addEventListener("click", () => { token.set(null); location.reload(); });
window.addEventListener("hashchange", () => { if (history.last()) { open(); main.focus({ preventScroll: true }); } });
begin();
