// Draws the pictures of the docs in Chromium. Arguments: the address of the HTTP door and of the admin door, a report of a
// simulation, the directory for the pictures, and for how many seconds to send requests.

const path = require("node:path");
const { chromium } = require("playwright-core");

const [door, admin, report, pictures, seconds] = process.argv.slice(2);
const pause = (millis) => new Promise((done) => setTimeout(done, millis));
const ask = (attributes) => fetch(`${door}/v1/check`, { method: "POST", body: JSON.stringify({ attributes }) }).then((it) => it.text());

/** The requests of one tenth of a second: steady traffic, and a client that asks too often from time to time. */
function requests(tenth) {
  const all = [];
  for (let i = 0; i < 6; i += 1) all.push({ action: "search", tenant: "acme", api_key: `k${(tenth * 7 + i * 3) % 40}` });
  for (let i = 0; i < 2 + Math.round(2 * Math.sin(tenth / 40)); i += 1) all.push({ action: "export", tenant: "corp", api_key: `k${i % 3}` });
  if (tenth % 3 === 0) all.push({ action: "login", user: `user${tenth % 60}` });
  if (tenth % 250 > 180) for (let i = 0; i < 5; i += 1) all.push({ action: "search", tenant: "zed", api_key: "k99" });
  return all;
}

(async () => {
  const args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"];
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args });
  const page = await browser.newPage({ viewport: { width: 1280, height: 960 }, colorScheme: "light" });
  await page.goto(`${admin}/ui`);
  await page.getByRole("table", { name: "Rules" }).waitFor();
  const start = Date.now();
  for (let tenth = 0; tenth < 10 * Number(seconds); tenth += 1) {
    await Promise.all(requests(tenth).map(ask));
    await pause(Math.max(0, start + 100 * tenth - Date.now()));
  }
  await page.getByRole("row", { name: /^search gcra/ }).waitFor();
  await page.screenshot({ path: path.join(pictures, "dashboard.png") });
  await page.setViewportSize({ width: 900, height: 620 });
  await page.goto(`file://${report}`);
  await page.getByRole("heading", { name: "Allowed and denied over time" }).waitFor();
  await page.screenshot({ path: path.join(pictures, "simulation.png") });
  await browser.close();
  console.log("done");
})().catch((error) => { console.error(error); process.exit(1); });
