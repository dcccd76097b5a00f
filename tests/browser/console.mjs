// The console in a real headless Chromium, from sign-in to outage and back, below a sub-path behind a proxy.
//
//   node console.mjs --url http://127.0.0.1:8080/ops/console/ --shots DIR     (the passport comes in RON_TOKEN)
//
// The caller controls the processes: this script prints `step <name>` and waits for a line on its standard input
// before it goes on. Steps: kill-kms, start-kms, stop-admin, start-admin.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const args = new Map();
for (let i = 2; i < process.argv.length; i += 2) args.set(process.argv[i].replace(/^--/, ""), process.argv[i + 1]);
const base = args.get("url"), shots = args.get("shots");
const waitMs = Number(args.get("wait") ?? "60") * 1000;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const THEMES = ["light", "dark", "red-eye"];
const VIEWS = [["fleet", "#/"], ["node", "#/nodes/ron-kms"], ["logs", "#/logs"], ["timeline", "#/timeline"], ["epochs", "#/epochs"], ["audit", "#/audit"], ["settings", "#/settings"]];

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const step = async (name) => { console.log(`step ${name}`); await lines.next(); };
const ok = (what) => console.log(`ok ${what}`);

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const page = await browser.newPage({ viewport: { width: 1360, height: 900 }, colorScheme: "light", reducedMotion: "reduce" });
page.setDefaultTimeout(waitMs);
const problems = [];
page.on("console", (m) => { if (m.type() === "error" || m.type() === "warning") problems.push(`console ${m.type()}: ${m.text()}`); });
page.on("pageerror", (e) => problems.push(`page error: ${e.message}`));
page.on("request", (r) => { if (!r.url().startsWith(base) && !r.url().startsWith("data:")) problems.push(`foreign request: ${r.url()}`); });
await page.addInitScript(() => document.addEventListener("securitypolicyviolation", (e) => console.error(`CSP ${e.violatedDirective} ${e.blockedURI}`)));
const shot = (name) => page.screenshot({ path: `${shots}/console-${name}.png`, fullPage: true });
/** Expected errors are dropped; any other error fails the run. */
const expected = (pattern) => { const rest = problems.filter((p) => !pattern.test(p)); problems.length = 0; problems.push(...rest); };

try {
  await signIn();
  await healthy();
  await everyViewInEveryTheme();
  await spanish();
  await filtersStay();
  await keyboard();
  await explore();
  await narrow();
  await longLists();
  await kmsGoesAndComes();
  await consoleGoesAndComes();
  await signOut();
} catch (error) {
  await shot("failed").catch(() => {});
  for (const problem of problems) console.error(`seen ${problem}`);
  throw error;
} finally {
  await browser.close();
}
assert.deepEqual(problems, [], "the browser reported problems");
ok("no console error, no foreign request, no CSP violation");
process.exit(0);

async function signIn() {
  const opened = await page.goto(base, { waitUntil: "load" });
  const csp = opened.headers()["content-security-policy"] ?? "";
  assert.match(csp, /default-src 'none'/);
  assert.ok(!csp.includes("unsafe"), csp);
  await page.waitForSelector(".signin input");
  await seriousProblems("sign-in");
  await shot("signin");
  await page.fill(".signin input", "not.a.passport");
  await page.click(".signin .go");
  await page.waitForSelector(".signin .bad[role=alert]");
  expected(/status of 401/);
  assert.equal(await page.inputValue(".signin input"), "", "the token stays in the field");
  await page.fill(".signin input", process.env.RON_TOKEN);
  await page.click(".signin .go");
  await page.waitForSelector("tr[data-node]");
  const seen = await page.evaluate(() => document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage));
  assert.ok(!seen.includes(process.env.RON_TOKEN.slice(0, 20)), "scripts can read the token");
  const [cookie] = await page.context().cookies(base + "api/overview");
  assert.deepEqual([cookie.name, cookie.httpOnly, cookie.sameSite], ["ron_admin", true, "Strict"]);
  assert.match(cookie.value, /^[\w-]{43}$/, "the cookie is a random id");
  ok("signed in with a passport that no script can read");
}

async function healthy() {
  await page.waitForFunction(() => document.querySelectorAll("tr[data-node][data-state=healthy]").length === 6);
  assert.match(await page.innerText("h1"), /All 6 services are healthy/);
  ok("six services are healthy");
}

async function everyViewInEveryTheme() {
  for (const theme of THEMES) {
    await page.evaluate((t) => { localStorage.setItem("ron.theme", t); location.hash = "#/"; }, theme);
    await page.reload();
    await page.waitForSelector("tr[data-node]");
    for (const [name, hash] of VIEWS) {
      await page.evaluate((h) => { location.hash = h; }, hash);
      await present(name);
      assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), theme);
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true, `${name} is wider than the window`);
      await seriousProblems(`${name} ${theme}`);
      await shot(`${name}-${theme}`);
    }
    ok(`every view in ${theme}: nothing serious`);
  }
  // `system` follows the browser.
  await page.evaluate(() => { localStorage.setItem("ron.theme", "system"); location.hash = "#/"; });
  await page.emulateMedia({ colorScheme: "dark" });
  await page.reload();
  await page.waitForFunction(() => document.documentElement.dataset.theme === "dark");
  await page.emulateMedia({ colorScheme: "light" });
  await page.waitForFunction(() => document.documentElement.dataset.theme === "light");
  await page.evaluate(() => { location.hash = "#/"; });
  await present("fleet");
  ok("the system's theme is followed");
}

/** Waits until the view is shown with its content. */
async function present(name) {
  const selector = {
    fleet: "tr[data-node]", node: "section[aria-label=Planes] tbody tr", logs: "tr[data-log=ron-ledger][data-verdict=verified]",
    timeline: "table.timeline tbody tr", explore: ".chart .legend .key:nth-child(2)", epochs: "tr[data-epoch][data-state=settled]", audit: "tr[data-seq][data-result=done]", settings: ".pickers select",
  }[name];
  await page.waitForSelector(selector);
  if (name === "logs") {
    await page.waitForSelector("tr[data-key][data-state=active]");
    await page.waitForSelector("tr[data-kid]");
  }
  await page.waitForTimeout(150);
}

async function seriousProblems(where) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"], rules: { "target-size": { enabled: true } } }));
  const serious = found.violations.filter((v) => v.impact === "serious" || v.impact === "critical");
  assert.deepEqual(serious.map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => `${n.target} ${n.any.map((a) => a.message).join("; ")}`).join(" | ")}`), [], `axe in ${where}`);
}

async function spanish() {
  await page.evaluate(() => localStorage.setItem("ron.language", "es-ES"));
  await page.reload();
  await page.waitForSelector("tr[data-node]");
  assert.equal(await page.evaluate(() => document.documentElement.lang), "es-ES");
  assert.match(await page.innerText("h1"), /servicios están sanos/);
  await shot("fleet-es");
  await page.evaluate(() => localStorage.setItem("ron.language", "en-US"));
  await page.reload();
  await page.waitForSelector("tr[data-node]");
  ok("the page speaks Spanish");
}

async function filtersStay() {
  await page.fill("input[type=search]", "wallet");
  await page.waitForFunction(() => document.querySelectorAll("tr[data-node]").length === 1);
  await page.click("th button.sort >> nth=1");
  const address = page.url();
  assert.ok(address.includes("q=wallet") && address.includes("sort="), address);
  await page.reload();
  await page.waitForSelector("tr[data-node]");
  assert.equal(page.url(), address);
  assert.equal(await page.locator("tr[data-node]").count(), 1);
  assert.equal(await page.inputValue("input[type=search]"), "wallet");
  await page.evaluate(() => { location.hash = "#/"; });
  await page.waitForFunction(() => document.querySelectorAll("tr[data-node]").length === 6);
  ok("filters survive a reload");
}

async function keyboard() {
  await page.evaluate(() => document.activeElement?.blur());
  for (const [key, hash] of [["l", "#/logs"], ["t", "#/timeline"], ["x", "#/explore"], ["e", "#/epochs"], ["a", "#/audit"], ["s", "#/settings"], ["f", "#/"]]) {
    await page.keyboard.press(key);
    await page.waitForFunction((h) => location.hash === h, hash);
  }
  await page.keyboard.press("?");
  await page.waitForSelector("dialog[open] kbd");
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog[open]", { state: "detached" });
  ok("the views are a key away");
}

async function explore() {
  await page.evaluate(() => { location.hash = "#/explore?nodes=ron-kms&metric=ron_kms_queue_depth"; });
  // The series differ by their queues; one of them is chosen.
  await page.waitForSelector(".explore select[aria-label=queue]");
  await page.selectOption(".explore select[aria-label=queue]", { label: "http" });
  await page.waitForFunction(() => document.querySelectorAll(".chart .legend .key").length === 1);
  const chosen = new URLSearchParams(new URL(page.url()).hash.split("?")[1]);
  assert.equal(chosen.get("labels"), 'queue="http"');
  // Another metric, and a second service to compare with.
  await page.fill(".explore input[type=search]", "open_fds");
  await page.selectOption(".explore select[aria-label=Metric]", "process_open_fds");
  await page.selectOption(".explore select[aria-label='Compare with …']", "svc-wallet");
  await page.waitForFunction(() => document.querySelectorAll(".chart .legend .key").length === 2);
  await page.click(".chart details summary");
  // The table is made when its part of the page is opened, and gets a row with each sample.
  await page.waitForFunction(() => [...document.querySelectorAll(".chart td.num")].filter((cell) => Number(cell.innerText) > 5).length >= 2);
  // Marking a part of the chart shows that part alone, also after a reload, until all is asked for.
  await page.waitForFunction(() => document.querySelectorAll(".chart tbody tr").length >= 6);
  const box = await page.locator(".chart .u-over").boundingBox();
  await page.mouse.move(box.x + box.width * 0.5, box.y + 40);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.98, box.y + 60, { steps: 5 });
  await page.mouse.up();
  await page.waitForFunction(() => location.hash.includes("from="));
  const address = page.url();
  const rows = await page.locator(".chart tbody tr").count();
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll(".chart .legend .key").length === 2);
  assert.equal(page.url(), address);
  await page.click(".chart details summary");
  await page.waitForSelector(".chart tbody tr");
  await page.click("button:has-text('Show all')");
  await page.waitForFunction((n) => document.querySelectorAll(".chart tbody tr").length > n, rows);
  // What is kept for seven days has a first point after a minute.
  await page.selectOption(".explore select[aria-label=Metric]", "node:memory_bytes");
  await page.waitForSelector(".chart .legend .key:nth-child(2)", { timeout: waitMs + 75_000 });
  assert.match(await page.innerText(".chart .legend"), /MiB/);
  await page.click("button.chip:has-text('7d')");
  await page.waitForFunction(() => location.hash.includes("window=7d"));
  await seriousProblems("a figure of seven days");
  await page.evaluate(() => { location.hash = "#/explore?nodes=ron-kms&metric=no_such_metric"; });
  await page.waitForSelector("main .none:has-text('Not reported')");
  ok("any metric can be looked at, compared and kept in the address");
}

async function narrow() {
  await page.setViewportSize({ width: 375, height: 812 });
  for (const theme of ["light", "dark"]) {
    await page.evaluate((t) => localStorage.setItem("ron.theme", t), theme);
    await page.reload();
    for (const [name, hash] of VIEWS) {
      await page.evaluate((h) => { location.hash = h; }, hash);
      await present(name);
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true, `a phone has to scroll ${name} sideways`);
      await seriousProblems(`${name} ${theme} on a phone`);
      await shot(`${name}-phone-${theme}`);
    }
  }
  await page.evaluate(() => { localStorage.setItem("ron.theme", "light"); location.hash = "#/"; });
  await page.setViewportSize({ width: 1360, height: 900 });
  await page.reload();
  await present("fleet");
  ok("every view fits a phone");
}

/** A list that ends before the fleet's does says so, with how much of it is shown and where the rest is. */
async function longLists() {
  await page.route("**/api/keys", async (route) => {
    const answer = await (await route.fetch()).json();
    const one = { node: "ron-kms", id: "01a2", key: "ron/app/ed25519/01a2", op: "destroy", requester: "ann", needed: 2, approvedBy: [], created: answer.asOf, expires: answer.asOf };
    answer.approvals.push(one);
    answer.sources = answer.sources.map((source) => ({ ...source, truncated: true, approvalsTruncated: true }));
    await route.fulfill({ json: answer });
  });
  await page.evaluate(() => { location.hash = "#/logs"; });
  await page.waitForSelector("tr[data-approval='01a2']");
  const said = await page.locator(".more").allInnerTexts();
  assert.match(said[0], /^1 requests are shown, and more wait.*ron kms approvals list KEY/);
  assert.match(said[1], /^\d+ keys are shown, and there are more.*ron kms list/);
  await page.unroute("**/api/keys");
  await page.evaluate(() => { location.hash = "#/"; });
  ok("a list that is cut says how much is shown and where the rest is");
}

async function kmsGoesAndComes() {
  await page.evaluate(() => { localStorage.setItem("ron.refresh", "2"); });
  await page.reload();
  await page.waitForSelector("tr[data-node]");
  const intervalMs = await page.evaluate(async () => (await (await fetch("api/ui-config")).json()).intervalSeconds * 1000);
  await page.evaluate(() => { window.mark = true; });
  await step("kill-kms");
  const killed = Date.now();
  await page.waitForSelector("tr[data-node=ron-kms][data-state=down]");
  const took = Date.now() - killed;
  // The next poll, three refused tries, and the page's own interval; measured: docs/bench/admin.md.
  if (process.env.RON_QUIET) assert.ok(took <= 3 * intervalMs, `it took ${took} ms, three intervals are ${3 * intervalMs} ms`);
  const why = await page.innerText("tr[data-node=ron-kms] td.why");
  assert.match(why, /refused/);
  const first = await page.locator("tr[data-node]").first().getAttribute("data-node");
  assert.equal(first, "ron-kms", "problems come first");
  assert.match(await page.title(), /^\(\d\)/);
  await page.evaluate(() => { location.hash = "#/timeline"; });
  await page.waitForSelector("tr.incident[data-node=ron-kms][data-over=false]");
  await shot("timeline-incident");
  await page.click("button.chip:has-text('Errors') >> nth=-1");
  await page.waitForFunction(() => location.hash.includes("least=error"));
  await page.click("tr.incident[data-node=ron-kms][data-over=false] button[aria-expanded=false]");
  await page.waitForSelector("tr.inside[data-kind=node_state][data-node=ron-kms]");
  assert.equal(await page.locator("tr[data-kind=started]").count(), 0, "a start is no error");
  await shot("timeline-outage");
  await seriousProblems("the timeline of an outage");
  const desk = page.viewportSize();
  await page.setViewportSize({ width: 375, height: 812 });
  await shot("timeline-outage-phone");
  await page.setViewportSize(desk);
  await page.evaluate(() => { location.hash = "#/logs"; });
  // What was read of its keys before stays, and that they cannot be read now is said.
  await page.waitForSelector(".note:has-text('Keys of ron-kms cannot be read')");
  await page.waitForSelector("tr[data-key][data-state=active]");
  await seriousProblems("keys of an outage");
  await shot("logs-outage");
  await page.evaluate(() => { location.hash = "#/"; });
  await page.waitForSelector("tr[data-node=ron-kms][data-state=down]");
  await seriousProblems("an outage");
  await shot("fleet-kms-down");
  await page.evaluate(() => { location.hash = "#/nodes/ron-kms"; });
  await page.waitForSelector(".verdict.v-down .reasons");
  await page.waitForSelector(".parts.gone .b-unknown");
  const past = await page.evaluate(() => ({
    green: document.querySelectorAll(".parts .b-healthy").length,
    planes: document.querySelectorAll(".parts .b-unknown").length,
    words: document.querySelector(".note.past").innerText,
    text: document.querySelector(".parts").innerText,
  }));
  assert.equal(past.green, 0, "nothing of a service that does not answer is healthy");
  assert.ok(past.planes > 5, "its planes are still named");
  assert.match(past.words, /does not answer.*from.*ago/s);
  assert.doesNotMatch(past.text, /not called yet/);
  const wide = page.viewportSize();
  await page.setViewportSize({ width: 390, height: 844 });
  assert.ok(await page.locator(".lock").isVisible(), "a phone says that the console is read-only, too");
  await shot("node-kms-down-phone");
  await page.setViewportSize(wide);
  await shot("node-kms-down");
  await page.evaluate(() => { location.hash = "#/"; });
  await page.waitForSelector("dl.tiles");
  assert.match(await page.innerText("dl.tiles"), /Server errors/);
  ok(`the page says what is down and why after ${took} ms`);
  await step("start-kms");
  await page.waitForFunction(() => document.querySelectorAll("tr[data-node=ron-kms][data-state=healthy], tr[data-node=ron-kms][data-state=degraded]").length === 1);
  assert.equal(await page.evaluate(() => window.mark), true, "the page was not loaded again");
  await page.evaluate(() => { location.hash = "#/timeline"; });
  await page.waitForSelector("tr.incident[data-node=ron-kms]");
  await shot("timeline-after");
  await page.evaluate(() => { location.hash = "#/"; });
  ok("it recovers by itself");
}

async function consoleGoesAndComes() {
  await step("stop-admin");
  await page.waitForSelector(".lost[role=alert]");
  assert.ok((await page.locator("tr[data-node]").count()) === 6, "the last known state is gone");
  await seriousProblems("a lost connection");
  await shot("lost");
  await step("start-admin");
  await page.waitForSelector(".lost[role=alert]", { state: "detached" });
  // Sessions are kept in memory alone: a restart ends them.
  await page.waitForSelector(".signin input");
  await page.fill(".signin input", process.env.RON_TOKEN);
  await page.click(".signin .go");
  await page.waitForSelector("tr[data-node=svc-wallet][data-state=healthy]");
  assert.equal(await page.evaluate(() => window.mark), true, "the page was not loaded again");
  // While the console was down the proxy answered 502; a console without keys answers 503.
  expected(/status of (401|50[234])|ERR_CONNECTION|ERR_EMPTY/);
  await page.evaluate(() => { location.hash = "#/explore?nodes=ron-kms&metric=node%3Amemory_bytes&window=1h"; });
  await page.waitForSelector(".chart .legend .key");
  ok("the history is there after a restart of the console");
  await page.evaluate(() => { location.hash = "#/timeline"; });
  await page.waitForSelector("tr.incident[data-node=ron-kms]");
  ok("a lost connection is said, and found again");
}

async function signOut() {
  await page.evaluate(() => { location.hash = "#/settings"; });
  await page.click(".facts button");
  await page.waitForSelector(".signin input");
  assert.deepEqual(await page.context().cookies(base + "api/overview"), []);
  ok("signed out");
}
