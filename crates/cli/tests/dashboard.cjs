// Drives the dashboard in Chromium. Arguments: the address of the HTTP door and of the admin door, and the directory for
// screenshots. The config of the server is rules.yaml in the working directory.

const assert = require("node:assert");
const fs = require("node:fs");
const path = require("node:path");
const { chromium } = require("playwright-core");
const axe = require("axe-core").source;

const [door, admin, pictures] = process.argv.slice(2);
const HOSTILE = "<script>document.title='taken'</script>";
const MARKUP = '<img src=x onerror=alert(3)>"';
const ask = (attributes) => fetch(`${door}/v1/check`, { method: "POST", body: JSON.stringify({ attributes }) });
const check = (user) => ask({ action: "login", user });
const as = (token) => ({ headers: { Authorization: `Bearer ${token}` } });

(async () => {
  const args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"];
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args });
  const page = await browser.newPage();
  page.setDefaultTimeout(20_000);
  const problems = [];
  const addresses = [];
  page.on("request", (it) => addresses.push(it.url()));
  // How many timers the page has, so that the test need not wait for them.
  await page.addInitScript(() => {
    const { setInterval: start, clearInterval: end } = window;
    window.timers = new Set();
    window.setInterval = (...args) => { const timer = start(...args); window.timers.add(timer); return timer; };
    window.clearInterval = (timer) => { window.timers.delete(timer); end(timer); };
  });
  let bytes = 0;
  // Without a token the first request is answered with 401, and a bad override with 422, which the browser notes.
  page.on("console", (it) => { if (it.type() === "error" && !/\b(400|401|404|422)\b|net::ERR_FAILED/.test(it.text())) problems.push(it.text()); });
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("dialog", (it) => { problems.push(`a dialog: ${it.message()}`); it.dismiss(); });
  page.on("response", async (it) => { if (it.url().includes("/ui/")) bytes += (await it.body().catch(() => "")).length; });
  const see = (text) => page.getByText(text).first().waitFor();
  const preview = page.getByRole("region", { name: "Preview" });
  /** Waits until the page shows a change, and undoes it. */
  const undo = async () => { await page.getByRole("button", { name: "Undo" }).click(); await see("Undone: "); };
  const row = (name) => page.getByRole("row", { name }).first().waitFor();
  const open = (name) => page.getByRole("link", { name, exact: true }).click();
  const picture = (name) => page.screenshot({ path: path.join(pictures, `${name}.png`) });
  const focused = () => page.evaluate(() => document.activeElement.textContent);
  /** Waits for this many live figures. */
  const ticks = async (count) => {
    for (let i = 0; i < count; i += 1) {
      const before = await page.locator("#clock").textContent();
      await page.waitForFunction((old) => document.getElementById("clock").textContent !== old, before);
    }
  };
  /** Looks for what keeps people from using the page, such as missing labels and weak colours. */
  const examine = async (name) => {
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => window.axe.run());
    assert.deepEqual(violations.map((it) => `${name}: ${it.help}: ${it.nodes.map((node) => node.html).join(" ")}`), []);
  };

  // Without a token nothing is shown, and a wrong one is told.
  await page.goto(`${admin}/ui`);
  await page.getByLabel("Token").waitFor();
  await examine("sign in");
  assert(!(await page.content()).includes("login"), "a page without a token shows a rule");
  await page.getByLabel("Token").fill("wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await see("this needs a token");
  problems.length = 0;

  // A reader sees everything, and can change nothing.
  await page.getByLabel("Token").fill("test");
  await page.getByRole("button", { name: "Sign in" }).click();
  await see("viewer (read)");
  await open("Changes");
  await see("This token may look, and not change anything.");
  assert.equal(await page.getByRole("button", { name: "Preview" }).count(), 0);
  await open("Now");
  await page.getByRole("link", { name: "login", exact: true }).first().click();
  await see("Numbers and the layers that set them");
  assert.equal(await page.getByRole("button", { name: "Preview" }).count(), 0);
  await page.getByRole("button", { name: "Sign out" }).click();

  await page.getByLabel("Token").fill("test2");
  await page.getByRole("button", { name: "Sign in" }).click();
  await see("ops (admin)");
  assert(addresses.every((it) => it.startsWith(`${admin}/`)), "a request to another place");
  assert(bytes > 0 && bytes < 150_000 * 2, `the files of two loads have ${bytes} bytes`);

  // Denials arrive while the page is open.
  await open("Denials");
  await see("Live: no denial yet.");
  for (let i = 0; i < 4; i += 1) await check(HOSTILE);
  await page.getByRole("cell", { name: "exceeded" }).first().waitFor();

  // The tap says how many denials it has missed, and goes on after the server was away.
  let lists = 0;
  let waits = 0;
  await page.route("**/v1/denials**", async (route) => {
    const isWait = route.request().url().includes("after=");
    lists += isWait ? 0 : 1;
    // Until the new tap has asked for its list, the old one may go on.
    waits += isWait && lists > 0 ? 1 : 0;
    if (isWait && waits === 1) return route.fulfill({ json: { denials: [], isCut: false, next: 0, missed: 7 } });
    if (isWait && waits === 2) return route.abort();
    return route.continue();
  });
  await page.getByRole("button", { name: "Filter" }).click();
  await see("7 denials came too fast to be shown.");
  while (lists < 2 || waits < 3) await ticks(1);
  await page.unroute("**/v1/denials**");
  await check(HOSTILE);
  await page.waitForFunction(() => document.querySelectorAll("main tbody tr").length === 3);

  // A denial leads to an explanation. The journal has no values, so the operator adds them.
  await page.getByRole("link", { name: "explain", exact: true }).first().click();
  await see("A denial by rule login, of the subject user ");
  const attributesOf = page.getByLabel("Attributes of a request");
  assert.equal(await attributesOf.inputValue(), "action=login user=");
  await page.getByRole("table", { name: "Recent denials" }).waitFor();
  await page.getByRole("button", { name: "Explain" }).click();
  await see("fill in the value of `user`");
  await attributesOf.fill("action=login user=somebody");
  await page.getByRole("button", { name: "Explain" }).click();
  await see("These attributes make another subject than that of the denial.");
  await attributesOf.fill(`action=login user=${HOSTILE}`);
  await page.getByRole("button", { name: "Explain" }).click();
  await see("A check would be denied now");
  await page.getByRole("row", { name: / login exceeded user / }).first().waitFor();
  await see("None concerns this subject.");
  await examine("a subject");
  await page.getByRole("link", { name: "block or override it" }).click();
  assert.equal(await page.getByRole("form", { name: "Set an override" }).getByLabel("Subject").inputValue(), `user=${HOSTILE}`);
  assert.equal(await page.getByRole("form", { name: "Block a subject" }).getByLabel("Subject").inputValue(), `user=${HOSTILE}`);
  // No address has had the value.
  assert(!page.url().includes("user"), page.url());
  assert.deepEqual(addresses.filter((it) => it.includes("document.title")), []);

  await open("Now");
  await page.getByRole("row", { name: /^login fixed-window/ }).waitFor();
  await picture("now");

  // Live figures take the focus from nobody, and a screen reader does not read the clock.
  await page.evaluate(() => {
    window.announced = 0;
    const regions = document.querySelectorAll("[role=status]");
    for (const it of regions) new MutationObserver(() => { window.announced += 1; }).observe(it, { childList: true, characterData: true, subtree: true });
  });
  await page.getByRole("button", { name: "allowed", exact: true }).focus();
  await ticks(2);
  assert.equal(await focused(), "allowed");
  await page.keyboard.press("Enter");
  assert.equal(await focused(), "allowed ▾");
  await page.keyboard.press("Tab");
  await ticks(1);
  assert.equal(await focused(), "denied");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  // The first rule of the table, which another rule may have overtaken.
  const first = await focused();
  for (let i = 0; i < 5; i += 1) await ask({ action: "api", tenant: "acme" });
  await ticks(2);
  assert.equal(await focused(), first);
  assert.equal(await page.evaluate(() => window.announced), 0);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: `Rule ${first}` }).waitFor();

  // Every page can be used by keyboard and screen reader, in both colour schemes.
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    for (const name of ["Now", "Denials", "Explain", "Quotas", "Changes", "Fleet", "Find a rule"]) {
      await open(name);
      await page.getByRole("heading", { level: 1 }).waitFor();
      await examine(`${name}, ${colorScheme}`);
    }
  }
  await open("Fleet");
  await see("(this one)");
  await see("ok, memory, ledger");
  // A start may be days ago, so its day is shown.
  const day = await page.evaluate(() => new Intl.DateTimeFormat(undefined, { dateStyle: "medium" }).format(new Date()));
  await row(`(this one) up ok, memory, ledger`);
  assert((await page.getByRole("table", { name: "Instances" }).textContent()).includes(day), day);

  // The ten questions lead to a rule.
  await open("Find a rule");
  await page.getByLabel("Must no window ever exceed the limit?").selectOption("yes");
  await page.getByLabel("The attribute of the subject").fill("ip");
  await page.getByRole("button", { name: "Find a rule" }).click();
  const advice = page.getByRole("region", { name: "Advice" });
  await advice.getByRole("heading", { name: "sliding-log" }).waitFor();
  const found = await advice.textContent();
  assert(found.includes("per: [ip]") && found.includes("a sliding log is exact") && found.includes("Nine subjects at half of the limit: 0 of"), found);
  await examine("advice");
  await picture("advice");
  await page.getByLabel("The attribute of the subject").fill("a b");
  await page.getByRole("button", { name: "Find a rule" }).click();
  await see("`per` must be the name of an attribute");

  // A part of a name finds a rule, and the figures go on.
  await open("Now");
  const rulesOf = page.getByRole("table", { name: "Rules" }).getByRole("row");
  await page.getByLabel("Find a rule").fill("API-N");
  await page.waitForFunction(() => document.querySelectorAll("table[aria-label=Rules] tbody tr").length === 1);
  await ticks(1);
  assert.equal(await rulesOf.count(), 2);
  await page.getByLabel("Find a rule").fill("shadow");
  await page.getByRole("row", { name: /^trial fixed-window, shadow/ }).waitFor();
  await page.getByLabel("Find a rule").fill("nothing like this");
  await see("No rule has this in its name");
  await page.getByLabel("Find a rule").fill("");
  await page.getByRole("row", { name: /^login fixed-window/ }).waitFor();
  await open("Now");

  // A rule, an explanation.
  await page.getByRole("link", { name: "login", exact: true }).first().click();
  await see("Denials by reason");
  // A fair rule shows its lanes, and what clients of each weight get.
  const attributes = { action: "pool", user: "ann", plan: "pro", priority: "high" };
  await fetch(`${door}/v1/check`, { method: "POST", body: JSON.stringify({ attributes }) });
  await open("Now");
  await page.getByRole("link", { name: "pool", exact: true }).first().click();
  await see("Lanes and shares");
  await page.getByRole("row", { name: /^high 60 % 1 0 / }).waitFor();
  await page.getByRole("row", { name: /^5 1 / }).waitFor();
  await examine("a fair rule");
  await open("Explain");
  await page.getByLabel("Attributes of a request").fill("action=login user=ann");
  await page.getByRole("button", { name: "Explain" }).click();
  await see("A check would be allowed now.");

  // A block acts, and is undone.
  await open("Changes");
  const form = page.getByRole("form", { name: "Block a subject" });
  await form.getByLabel("Subject").fill("user=ann");
  await form.getByLabel("Reason").fill(HOSTILE);
  await form.getByRole("button", { name: "Preview" }).click();
  await preview.getByText(/^subject user:[0-9a-f]{32}: requests decided by the rules → denied before any rule$/).waitFor();
  assert.equal((await check("ann")).status, 200);
  await preview.getByRole("button", { name: "Block" }).click();
  await see("Block user=ann: done.");
  await see(HOSTILE);
  assert.equal((await check("ann")).status, 403);
  await undo();
  await see("Nobody is blocked.");
  assert.equal((await check("ann")).status, 200);
  // A block that has ended comes back.
  await form.getByLabel("Subject").fill("user=ann");
  await form.getByLabel("Reason").fill(HOSTILE);
  await form.getByRole("button", { name: "Preview" }).click();
  await preview.getByRole("button", { name: "Block" }).click();
  await page.getByRole("button", { name: "Unblock" }).click();
  await preview.getByLabel("Reason").fill("a mistake");
  await preview.getByRole("button", { name: "Unblock" }).click();
  await see("Nobody is blocked.");
  assert.notEqual((await check("ann")).status, 403);
  await undo();
  await page.getByRole("button", { name: "Unblock" }).waitFor();
  assert.equal((await check("ann")).status, 403);
  await page.getByRole("button", { name: "Unblock" }).click();
  await preview.getByLabel("Reason").fill("done");
  await preview.getByRole("button", { name: "Unblock" }).click();
  await see("Nobody is blocked.");

  // A rule shows its numbers, and the layer that set each of them.
  await open("Now");
  await page.getByRole("link", { name: "api", exact: true }).first().click();
  await row("everyone rate 100/s rule gcra: 100 at once, all back in 1s");
  // The candidate is compared, and the busiest subjects of this rule are shown. About one check in 64 is sampled.
  await row(/^api-next api no plan \d+ \d+ \(/);
  for (let i = 0; i < 300; i += 1) await ask({ action: "api", tenant: "acme" });
  await page.getByRole("table", { name: "Subjects" }).getByRole("row", { name: /^[0-9a-f]{8} \d+/ }).first().waitFor();
  await row(/^tenant <img src=x onerror=alert\(2\)> rate 300\/s tenant <img src=x onerror=alert\(2\)> gcra: 300 at once/);
  await examine("numbers of a rule");

  // On the page of a rule: shadow, which acts after the preview, and is undone.
  await open("Now");
  await page.getByRole("link", { name: "login", exact: true }).first().click();
  await row("state enforce rule");
  const switching = page.getByRole("form", { name: "Change the state or the rollout" });
  assert.equal((await check(HOSTILE)).status, 429);
  await switching.getByLabel("or a state").selectOption("shadow");
  await switching.getByLabel("Reason").fill(HOSTILE);
  await switching.getByRole("button", { name: "Preview" }).click();
  await preview.getByText("rule login, everyone: state enforce → shadow").waitFor();
  await preview.getByText(`Reason: ${HOSTILE}`).waitFor();
  await examine("a preview");
  assert.equal((await check(HOSTILE)).status, 429);
  await preview.getByRole("button", { name: "Set" }).click();
  await row(`state shadow override everyone/login: ${HOSTILE}`);
  assert.equal((await check(HOSTILE)).status, 200);
  await undo();
  await row("state enforce rule");
  assert.equal((await check(HOSTILE)).status, 429);

  // The rollout, by keyboard. Escape leaves the preview, and gives the focus back.
  await switching.getByLabel("Reason").fill(HOSTILE);
  await switching.getByLabel("Rollout").fill("0%");
  await page.keyboard.press("Enter");
  await preview.getByText("rule login, everyone: rollout 100% → 0%").waitFor();
  await page.keyboard.press("Escape");
  await preview.waitFor({ state: "detached" });
  assert.equal(await page.evaluate(() => document.activeElement.name), "rollout");
  await page.keyboard.press("Enter");
  await preview.waitFor();
  await page.keyboard.press("Enter");
  await row(`rollout 0% override rollout:everyone/login: ${HOSTILE}`);
  assert.equal((await check(HOSTILE)).status, 200);
  await undo();
  await row("rollout 100% rule");
  assert.equal((await check(HOSTILE)).status, 429);

  // On the page of changes: numbers, a share that replaces them, and an end with a reason.
  await open("Changes");
  const overriding = page.getByRole("form", { name: "Set an override" });
  const propose = async (values) => {
    for (const [label, value] of Object.entries(values)) await overriding.getByLabel(label).fill(value);
    await overriding.getByRole("button", { name: "Preview" }).click();
  };
  await propose({ Rule: "login", Numbers: "limit=50", Reason: HOSTILE });
  await preview.getByText("rule login, everyone: limit 2 → 50").waitFor();
  await preview.getByText("For 1h, until ").waitFor();
  await preview.getByRole("button", { name: "Set" }).click();
  await row(/^everyone login limit 50 <script>/);
  assert.equal((await check(HOSTILE)).status, 200);
  await propose({ Rule: "login", "or a share": "50%", Reason: "load" });
  await preview.getByText("rule login, everyone: scale 100% → 50%").waitFor();
  await preview.getByText(`Replaces everyone/login: limit 50, by ops (${HOSTILE})`).waitFor();
  // To undo it brings the other one back.
  await preview.getByRole("button", { name: "Set" }).click();
  await row(/^everyone login 50% of the limit load/);
  await undo();
  await row(/^everyone login limit 50 <script>/);
  await propose({ Rule: "pool", "or a share": "", "or a rollout": "5%", Numbers: "", Reason: "load" });
  await see("a partial rollout needs subjects to choose from");
  await page.getByRole("button", { name: "End", exact: true }).click();
  await preview.getByLabel("Reason").fill(HOSTILE);
  await preview.getByRole("button", { name: "End" }).click();
  await see("No override is in force.");
  await undo();
  await row(/^everyone login limit 50 <script>/);
  await page.getByRole("button", { name: "End", exact: true }).click();
  await preview.getByLabel("Reason").fill(HOSTILE);
  await preview.getByRole("button", { name: "End" }).click();
  await see("No override is in force.");
  assert.equal((await check(HOSTILE)).status, 429);

  // The first page names the config, and who changed what last.
  await open("Now");
  await see(/^Config [0-9a-f]{12}, in force since /);
  await row(/ ops override\.clear rule login, everyone: limit 50 <script>/);
  await page.getByRole("link", { name: "All changes" }).click();

  // Another config, an older version in its place, the file again, and back. Each has a preview.
  const text = fs.readFileSync("rules.yaml", "utf8");
  fs.writeFileSync("rules.yaml", text.replace("limit: 2,", "limit: 3,"));
  const limit = async () => (await (await fetch(`${admin}/v1/rules/login`, { headers: { Authorization: "Bearer test" } })).json()).rule.limit;
  for (let tries = 0; (await limit()) !== 3; tries += 1) {
    assert(tries < 100, "the new config is not in force");
    await new Promise((done) => setTimeout(done, 100));
  }
  await open("Now");
  await row(/ file config\.reload [0-9a-f]{12}: rule login: limit 2 becomes 3/);
  await open("Changes");
  await page.getByRole("button", { name: "Put in force" }).click();
  await preview.getByText("rule login: limit 3 becomes 2").waitFor();
  await examine("a preview of a config");
  await preview.getByLabel("Reason").fill(HOSTILE);
  await preview.getByRole("button", { name: "Put in force" }).click();
  await see("An older version is in force.");
  await page.getByRole("button", { name: "Read the config file again" }).click();
  await preview.getByText("rule login: limit 2 becomes 3").waitFor();
  await preview.getByLabel("Reason").fill(HOSTILE);
  await preview.getByRole("button", { name: "Reload" }).click();
  await see("Read the config file again: done.");
  await page.getByText("An older version is in force.").waitFor({ state: "detached" });
  await undo();
  await see("An older version is in force.");

  // Quotas add up what the rules of a budget have used. Names that try to be markup are text.
  for (const action of ["buy", "rent"]) assert.equal((await ask({ action, tenant: MARKUP })).status, 200);
  assert.equal((await ask({ action: MARKUP, tenant: MARKUP })).status, 429);
  await open("Quotas");
  await page.getByRole("row").filter({ hasText: MARKUP }).filter({ hasText: "30 %" }).waitFor();
  await page.getByRole("button", { name: `Show the history of units of ${MARKUP}` }).click();
  await see("None in this period.");
  await page.getByRole("img", { name: "Left of units: 70 of 100" }).waitFor();
  await examine("a history");
  await picture("quotas");
  await open("Denials");
  await page.getByRole("row").filter({ hasText: "markup" }).filter({ hasText: MARKUP }).first().waitFor();
  const subject = `tenant=${MARKUP}`;
  for (const [place, told] of [
    [`#/denials?subject=${encodeURIComponent(subject)}`, "markup"], [`#/explain?q=${encodeURIComponent(`action=login ${subject}`)}`, "A check would be"],
    [`#/changes?subject=${encodeURIComponent(subject)}`, "Who changed what"], [`#/rule/${encodeURIComponent(MARKUP)}`, `Rule ${MARKUP}`],
    ["#/rule/%", "There is no such page."], ["#/rule/", "There is no such page."], ["#/%3Cb%3E", "There is no such page."],
  ]) {
    await page.goto(`${admin}/ui/${place}`);
    await page.getByText(told, { exact: false }).first().waitFor();
  }

  // A phone. No page is wider than the screen.
  await page.setViewportSize({ width: 375, height: 740 });
  for (const name of ["Now", "Denials", "Explain", "Quotas", "Changes", "Fleet", "Find a rule"]) {
    await open(name);
    await page.getByRole("heading", { level: 1, name: name === "Explain" ? "Explain a request" : name }).waitFor();
    await ticks(1);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 375, name);
    await picture(`phone-${name.toLowerCase()}`);
  }
  await page.goto(`${admin}/ui/#/rule/login`);
  await see("Denials by reason");
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 375, "a rule");
  await picture("phone-rule");

  // The audit trail has each change once, with its author and reason, and no preview.
  const { entries } = await (await fetch(`${admin}/v1/audit?limit=100`, { headers: { Authorization: "Bearer test" } })).json();
  const set = entries.filter((it) => it.what === "override.set").reverse();
  assert.deepEqual(set.map(({ who, why, to: { rule, state, rollout, scale, numbers } }) => ({ who, why, rule, change: state ?? rollout ?? scale ?? numbers.limit })),
    ["shadow", "0%", "50", "50%", "50", "50"].map((change) => ({ who: "ops", why: change === "50%" ? "load" : HOSTILE, rule: "login", change })));
  const configs = entries.filter((it) => it.what.startsWith("config.r") && it.what !== "config.rollback.ended").reverse();
  assert.deepEqual(configs.map(({ what, who, why }) => [what, who, why ?? null]),
    [["config.reload", "file", null], ["config.rollback", "ops", HOSTILE], ["config.reload", "ops", HOSTILE], ["config.rollback", "ops", "undone"]]);

  // A token that is revoked ends everything that it has shown.
  await open("Fleet");
  await see("(this one)");
  assert.equal(await page.evaluate(() => window.timers.size), 1);
  fs.writeFileSync("rules.yaml", text.replace(/.*name: ops.*\n/, ""));
  await page.getByLabel("Token").waitFor();
  await see("this needs a token");
  assert.equal(await page.evaluate(() => window.timers.size), 0);
  await page.evaluate(() => { location.hash = "#/changes"; });
  await page.getByLabel("Token").waitFor();
  assert.equal(await page.evaluate(async () => (await import("/ui/history.js")).history.last()), null);
  assert.equal(await page.getByRole("link", { name: "Changes" }).count(), 0);

  assert.notEqual(await page.title(), "taken");
  assert.deepEqual(problems, []);
  await browser.close();
  console.log("done");
})().catch((error) => { console.error(error); process.exit(1); });
