// Finds a rule: ten questions, and the answer of the same engine as `tollgate advise`.

import { form } from "./acting.js";
import { post } from "./api.js";
import { bytes, field, h, short, show, wait } from "./dom.js";

const YES_NO = [["", "no"], ["yes", "yes"]];

/** The questions: name, text, and the possible answers. The first is the default. */
const QUESTIONS = [
  ["what", "What is limited?", [["rate", "requests per time"], ["quota", "an amount in a calendar period"], ["concurrency", "work at the same time"]]],
  ["exact", "Must no window ever exceed the limit?", YES_NO],
  ["bursts", "What about bursts?", [["allow", "allow them"], ["smooth", "smooth them over the window"], ["wait", "let requests wait for their turn"]]],
  ["cost", "What does a request cost?", [["same", "all cost the same"], ["varies", "an attribute says it"], ["later", "it is known later"]]],
  ["subjects", "How many subjects are there in a window?", null],
  ["smallMemory", "Is memory scarce?", YES_NO],
  ["failure", "What happens while the store is down?", [["local", "each instance counts by itself"], ["open", "requests are allowed"], ["closed", "requests are denied"]]],
  ["billing", "Is the usage billed?", YES_NO],
  ["fleet", "Do several instances share the limit?", YES_NO],
  ["together", "Must several rules be decided together?", YES_NO],
];

const choice = (name, text, answers) =>
  h("label", {}, text, h("select", { name }, answers.map(([value, label]) => h("option", { value }, label))));

export function advise(main) {
  const answer = h("div", { tabindex: "-1" });
  const questions = QUESTIONS.map(([name, text, answers]) =>
    (answers ? choice(name, text, answers) : field(text, name, { type: "number", min: 1, value: 10000, required: true })));
  show(main, h("h1", {}, "Find a rule"),
    h("section", {}, form(ask, "Ten questions", questions,
      field("The attribute of the subject", "per", { value: "user", required: true }),
      field("The limit", "limit", { type: "number", min: 1, value: 100, required: true }),
      field("The time that it is for, as 1m", "window", { placeholder: "1m; a month for a quota" }),
      h("button", { class: "main" }, "Find a rule")),
    h("p", { class: "dim" }, "Nothing is changed: you get a config to copy.")), answer);

  async function ask(given) {
    const yes = (name) => given[name] === "yes";
    const body = { ...given, subjects: Number(given.subjects), limit: Number(given.limit) };
    for (const [name, , answers] of QUESTIONS) if (answers === YES_NO) body[name] = yes(name);
    try {
      show(answer, advice(await post("/v1/advise", body), body));
    } catch (error) {
      show(answer, h("p", { class: "notice bad", role: "alert" }, error.message));
    }
    answer.focus();
  }
  return () => {};
}

function advice(it, asked) {
  const cost = asked.fleet
    ? `${bytes(it.bytesPerSubject)} of Redis for a subject, ${bytes(it.bytes)} for ${short(asked.subjects)}; ${it.redisMicros} µs of Redis CPU for a check`
    : `No Redis: ${bytes(it.memoryBytes)} of memory for ${short(asked.subjects)} subjects`;
  return h("section", { "aria-label": "Advice" }, h("h2", {}, it.algorithm), h("pre", { class: "mono" }, it.config),
    h("h2", {}, "Why"), h("ul", { class: "plain" }, it.reasons.map((reason) => h("li", {}, reason))),
    h("h2", {}, "What it promises"), h("p", {}, it.promise),
    h("h2", {}, "What it costs"), h("p", {}, cost),
    it.simulation ? [h("h2", {}, "What a simulation shows"), h("p", {}, tried(it.simulation))] : null);
}

function tried(it) {
  const most = it.mostInWindow === null ? "" : `, at most ${it.mostInWindow} in ${wait(it.windowMillis)}`;
  const scaled = it.scale < 1 ? ` Simulated at ${it.scale} of the limit.` : "";
  return `Nine subjects at half of the limit: ${it.quietDenied} of ${it.quietRequests} requests denied. One at ten times the limit: ${it.loudAllowed} of ${it.loudRequests} allowed${most}.${scaled}`;
}
