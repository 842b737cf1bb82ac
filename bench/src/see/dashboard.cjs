// Opens the dashboard in Chromium, and prints what it costs as one line of JSON. Arguments: the address of the HTTP door
// and of the admin door, and the seconds to stay on the first page.
//
// A task is what the main thread of the page runs without a pause, as Chromium's own trace has it. While a task runs, the
// page does not answer.

const { chromium } = require("playwright-core");

const [door, admin, seconds] = process.argv.slice(2);
const CATEGORIES = ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline", "__metadata"];
/** How many documents the history of the page holds at most. */
const FULL = 120;

const pause = (millis) => new Promise((done) => setTimeout(done, millis));
const check = (attributes) => fetch(`${door}/v1/check`, { method: "POST", body: JSON.stringify({ attributes }) });

/** The longest task of the page's main thread in a trace, in milliseconds. */
function longest(trace) {
  const { traceEvents } = JSON.parse(trace);
  const main = new Set(traceEvents.filter((it) => it.name === "thread_name" && it.args.name === "CrRendererMain").map((it) => `${it.pid} ${it.tid}`));
  const tasks = traceEvents.filter((it) => it.ph === "X" && /RunTask$/.test(it.name) && main.has(`${it.pid} ${it.tid}`));
  if (tasks.length === 0) throw new Error("the trace has no task of a page");
  return { millis: Math.max(...tasks.map((it) => it.dur)) / 1000, tasks: tasks.length };
}

/** Loads the page in a browser that has nothing of it, and returns the bytes, and the time until the rules are shown. */
async function load(browser) {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.addInitScript(() => {
    new MutationObserver(() => {
      if (!window.shownAt && document.querySelector("table[aria-label=Rules] tbody tr")) window.shownAt = performance.now();
    }).observe(document, { childList: true, subtree: true });
  });
  const network = await context.newCDPSession(page);
  await network.send("Network.enable");
  let bytes = 0;
  let files = 0;
  network.on("Network.loadingFinished", (it) => { bytes += it.encodedDataLength; files += 1; });
  await page.goto(`${admin}/ui`);
  const millis = await (await page.waitForFunction(() => window.shownAt)).jsonValue();
  await context.close();
  return { bytes, files, millis };
}

(async () => {
  const args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"];
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args });
  // The first load starts the processes of the browser.
  await load(browser);
  const loads = [];
  for (let i = 0; i < 5; i += 1) loads.push(await load(browser));

  const page = await browser.newPage();
  page.setDefaultTimeout(30_000);
  const pages = [];
  let asking = true;
  const traffic = (async () => {
    for (let i = 0; asking; i += 1) {
      const tenant = `tenant-${(i * 7919) % 50_000}`;
      await check({ tenant, api_key: "k1", action: i % 3 ? "search" : `action-${4 * (i % 120) + 5}`, method: "GET", route: "/v1/items" });
      if (i % 20 === 0) await pause(50);
    }
  })();
  const traced = async (name, act) => {
    await browser.startTracing(page, { categories: CATEGORIES });
    await act();
    pages.push({ name, ...longest((await browser.stopTracing()).toString()) });
  };
  const row = page.locator("table[aria-label=Rules] tbody tr").first();
  const open = (name) => page.getByRole("link", { name, exact: true }).first().click();
  const heading = () => page.getByRole("heading", { level: 1 }).waitFor();

  await traced("load", async () => { await page.goto(`${admin}/ui`); await row.waitFor(); });
  // Two minutes of history, without waiting for them: copies of a document, with counts that grow.
  await page.evaluate(async (full) => {
    const { history } = await import("/ui/history.js");
    const last = history.last();
    const documents = [];
    for (let back = full - 1; back > 0; back -= 1) {
      const copy = structuredClone(last);
      copy.atEpochMillis -= 1000 * back;
      copy.requests.allowed = Math.max(0, copy.requests.allowed - 5 * back);
      copy.rules.forEach((it, place) => { it.allowed = Math.max(0, it.allowed - back * (place % 7)); it.denied = Math.max(0, it.denied - back * (place % 3)); });
      documents.push(copy);
    }
    history.documents = [...documents, last];
  }, FULL);
  await traced("Now, two minutes of history", () => pause(1000 * Number(seconds)));
  await traced("Now, another order", async () => { await page.getByRole("button", { name: "allowed" }).first().click(); await pause(2500); });
  await traced("a rule", async () => { await page.getByRole("link", { name: "search", exact: true }).first().click(); await heading(); await pause(2500); });
  await traced("Denials", async () => { await open("Denials"); await heading(); await pause(2500); });
  await traced("Explain", async () => {
    await open("Explain");
    await page.getByLabel("Attributes of a request").fill("tenant=tenant-7 api_key=k1 action=search method=GET route=/v1/items");
    await page.getByRole("button", { name: "Explain" }).click();
    await page.getByText("A check would be").first().waitFor();
    await pause(1500);
  });
  await traced("Quotas", async () => { await open("Quotas"); await heading(); await pause(2500); });
  await traced("Changes", async () => { await open("Changes"); await heading(); await pause(2500); });
  await traced("Fleet", async () => { await open("Fleet"); await heading(); await pause(2500); });
  await traced("back to Now", async () => { await open("Now"); await row.waitFor(); await pause(2500); });
  asking = false;
  await traffic;
  await browser.close();
  console.log(JSON.stringify({ loads, pages }));
})().catch((error) => { console.error(error); process.exit(1); });
