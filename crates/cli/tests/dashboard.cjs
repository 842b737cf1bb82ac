// Drives the dashboard in Chromium. Arguments: the address of the HTTP door and of the admin door.

const assert = require("node:assert");
const { chromium } = require("playwright-core");
const axe = require("axe-core").source;

const [door, admin] = process.argv.slice(2);
const HOSTILE = "<script>document.title='taken'</script>";
const check = (user) => fetch(`${door}/v1/check`, { method: "POST", body: JSON.stringify({ attributes: { action: "login", user } }) });

(async () => {
  const args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"];
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args });
  const page = await browser.newPage();
  page.setDefaultTimeout(20_000);
  const problems = [];
  let bytes = 0;
  // Without a token the first request is answered with 401, which the browser notes.
  page.on("console", (it) => { if (it.type() === "error" && !it.text().includes("401")) problems.push(it.text()); });
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("dialog", (it) => it.accept("because of a test"));
  page.on("response", async (it) => { if (it.url().includes("/ui/")) bytes += (await it.body().catch(() => "")).length; });
  const see = (text) => page.getByText(text).first().waitFor();
  const open = (name) => page.getByRole("link", { name, exact: true }).click();
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
  assert.equal(await page.getByRole("button", { name: "Block" }).count(), 0);
  await page.getByRole("button", { name: "Sign out" }).click();

  await page.getByLabel("Token").fill("test2");
  await page.getByRole("button", { name: "Sign in" }).click();
  await see("ops (admin)");
  assert(bytes > 0 && bytes < 150_000 * 2, `the files of two loads have ${bytes} bytes`);

  // Denials arrive while the page is open.
  await open("Denials");
  await see("Live: no denial yet.");
  for (let i = 0; i < 4; i += 1) await check(HOSTILE);
  await page.getByRole("cell", { name: "exceeded" }).first().waitFor();
  await open("Now");
  await page.getByRole("row", { name: /^login fixed-window/ }).waitFor();
  await page.screenshot({ path: "now.png" });

  // Every page can be used by keyboard and screen reader, in both colour schemes.
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    for (const name of ["Now", "Denials", "Explain", "Quotas", "Changes", "Fleet"]) {
      await open(name);
      await page.getByRole("heading", { level: 1 }).waitFor();
      await examine(`${name}, ${colorScheme}`);
    }
  }
  await open("Fleet");
  await see("(this one)");
  await open("Now");

  // A rule, an explanation.
  await page.getByRole("link", { name: "login", exact: true }).first().click();
  await see("Denials by reason");
  await open("Explain");
  await page.getByLabel("Attributes of a request").fill("action=login user=ann");
  await page.getByRole("button", { name: "Explain" }).click();
  await see("A check would be allowed now.");

  // A block acts, and is undone.
  await open("Changes");
  const form = page.getByRole("form", { name: "Block a subject" });
  await form.getByLabel("Subject").fill("user=ann");
  await form.getByLabel("Reason").fill(HOSTILE);
  await form.getByRole("button", { name: "Block" }).click();
  await see("Blocked user=ann");
  await see(HOSTILE);
  assert.equal((await check("ann")).status, 403);
  await page.getByRole("button", { name: "Undo" }).click();
  await see("Nobody is blocked.");
  assert.equal((await check("ann")).status, 200);

  assert.notEqual(await page.title(), "taken");
  assert.deepEqual(problems, []);
  await browser.close();
  console.log("done");
})().catch((error) => { console.error(error); process.exit(1); });
