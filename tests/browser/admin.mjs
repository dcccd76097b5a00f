// Opens the admin page in a real headless Chromium and checks it as an operator would see it.
//
//   node admin.mjs [--url http://127.0.0.1:7490/] [--shot out.png] [--services a,b,c] [--wait 30]
//
// It fails when a service is missing or has no state, when a state other than healthy has no reason, when a chart is
// not drawn, when the browser console has an error, when a request leaves the console's origin, or when the page
// cannot be used by keyboard. Chromium is found at $CHROMIUM or /usr/bin/chromium.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const SIX = "ron-kms,ron-ledger,svc-admin,svc-passport,svc-rewarder,svc-wallet";

const args = new Map();
for (let i = 2; i < process.argv.length; i += 2) args.set(process.argv[i].replace(/^--/, ""), process.argv[i + 1]);
const base = (args.get("url") ?? "http://127.0.0.1:7490/").replace(/\/?$/, "/");
const shot = args.get("shot");
const services = (args.get("services") ?? SIX).split(",").filter(Boolean);
const waitMs = Number(args.get("wait") ?? "30") * 1000;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const problems = [];
let checks = 0;
let page;
const ok = (what) => { checks += 1; console.log(`ok   ${what}`); };

try {
  page = await browser.newPage({ viewport: { width: 1360, height: 1000 }, colorScheme: "light", reducedMotion: "reduce" });
  page.setDefaultTimeout(waitMs);
  page.on("console", (m) => { if (m.type() === "error" || m.type() === "warning") problems.push(`console ${m.type()}: ${m.text()}`); });
  page.on("pageerror", (e) => problems.push(`page error: ${e.message}`));
  // Leaving a view cancels its requests, which is not a failure.
  page.on("requestfailed", (r) => r.failure()?.errorText !== "net::ERR_ABORTED" && problems.push(`request failed: ${r.url()} ${r.failure()?.errorText}`));
  page.on("request", (r) => { if (!r.url().startsWith(base) && !r.url().startsWith("data:")) problems.push(`foreign request: ${r.url()}`); });

  const opened = await page.goto(base, { waitUntil: "load", timeout: waitMs });
  const csp = opened.headers()["content-security-policy"] ?? "";
  assert.match(csp, /default-src 'none'/);
  assert.ok(!csp.includes("unsafe-inline"), "the policy allows inline code");
  ok("the page is served under a strict policy");

  await page.waitForSelector("tr[data-node]", { timeout: waitMs });
  await checkRows(page);
  await checkChart(page, "#main .chart", "fleet");
  if (shot) await page.screenshot({ path: shot, fullPage: true });
  await checkNode(page, services[0]);
  if (shot) await page.screenshot({ path: shot.replace(/\.png$/, "-node.png"), fullPage: true });
  await checkKeyboard(page);
  await checkThemes(page);
  await checkLogs(page);
  await checkLost(page);
} catch (error) {
  if (shot && page) await page.screenshot({ path: shot.replace(/\.png$/, "-failed.png"), timeout: 10_000 }).catch(() => {});
  for (const problem of problems) console.error(`seen ${problem}`);
  throw error;
} finally {
  await browser.close();
}
assert.deepEqual(problems, [], "the browser reported problems");
console.log(`${checks} checks passed`);

/** Every service has its row: a word, an icon, a reason unless healthy, and a first response. */
async function checkRows(page) {
  for (const id of services) {
    const row = page.locator(`tr[data-node="${id}"]`);
    await row.waitFor({ timeout: waitMs }).catch(() => assert.fail(`${id} has no row`));
    await page.waitForFunction((id) => document.querySelector(`tr[data-node="${id}"]`)?.dataset.state !== "unknown", id, { timeout: waitMs });
    // In one evaluation: a node's state may change between two.
    const [state, text] = await row.evaluate((row) => [row.dataset.state, row.innerText]);
    const words = text.toLowerCase();
    assert.ok(words.includes(state), `${id}: the word ${state} is not in its row`);
    assert.equal(await row.locator("td .badge svg").count(), 1, `${id}: no icon`);
    if (state !== "healthy") assert.ok((await row.locator("td.why").innerText()).trim().length > 3, `${id} is ${state} without a reason`);
    ok(`${id} is ${state}`);
  }
  const order = await page.locator("tr[data-node]").evaluateAll((rows) => rows.map((r) => ["down", "degraded", "unknown", "healthy"].indexOf(r.dataset.state)));
  assert.deepEqual(order, [...order].sort((a, b) => a - b), "problems do not come first");
  ok("problems come first");
}

/** The chart is drawn (its canvas has ink), names every service, and has a table behind it. */
async function checkChart(page, selector, what) {
  const chart = page.locator(selector).first();
  await page.waitForFunction((s) => {
    const canvas = document.querySelector(`${s} canvas`);
    if (!canvas || canvas.width < 100) return false;
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const seen = new Set();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 0) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
    return seen.size > 8;
  }, selector, { timeout: waitMs });
  if (what === "fleet") for (const id of services) assert.ok((await chart.innerText()).includes(id), `${id} is not in the chart's legend`);
  await chart.locator("summary").click();
  // Rows are samples, so a young fleet needs a few rounds.
  await page.waitForFunction((s) => document.querySelectorAll(`${s} table tbody tr`).length > 3, selector, { timeout: waitMs });
  await chart.locator("summary").click();
  ok(`the ${what} chart is drawn, with a table behind it`);
}

async function checkNode(page, id) {
  await page.click(`tr[data-node="${id}"] a`);
  await page.waitForSelector(`h1:has-text("${id}")`, { timeout: waitMs });
  await checkChart(page, "#main .charts .chart", "node");
  assert.ok((await page.locator("section[aria-label=Planes] tbody tr").count()) > 0, "no planes");
  assert.ok((await page.locator("section[aria-label=Queues] tbody tr").count()) > 0, "no queues");
  ok(`${id} shows planes and queues`);
  await page.reload();
  await page.waitForSelector(`h1:has-text("${id}")`, { timeout: waitMs });
  ok("reloading keeps the view");
}

async function checkKeyboard(page) {
  await page.keyboard.press("f");
  await page.waitForSelector("tr[data-node]", { timeout: waitMs });
  await page.keyboard.press("/");
  await page.keyboard.type(services.at(-1));
  await page.waitForFunction(() => document.querySelectorAll("tr[data-node]").length === 1, null, { timeout: waitMs });
  assert.ok(page.url().includes("q="), "the filter is not in the address");
  await page.keyboard.press("Escape");
  await page.evaluate(() => { location.hash = "#/"; });
  await page.waitForFunction((n) => document.querySelectorAll("tr[data-node]").length >= n, services.length, { timeout: waitMs });
  await page.locator(".canvas").first().focus();
  await page.keyboard.press("ArrowLeft");
  assert.match(await page.locator(".legend .when").first().innerText(), /\d\d:\d\d:\d\d/, "the chart has no keyboard cursor");
  await page.keyboard.press("Tab");
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.notEqual(outline, "none", "focus is not visible");
  ok("the page works by keyboard");
}

async function checkThemes(page) {
  for (const theme of ["dark", "red-eye", "light"]) {
    if (!(await page.locator(".settings").evaluate((e) => e.open))) await page.click(".settings summary");
    await page.locator(".sheet select").first().selectOption(theme);
    await page.keyboard.press("Escape");
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), theme);
    const low = await page.evaluate(contrastFailures);
    assert.deepEqual(low, [], `${theme}: text with too little contrast`);
    if (shot) await page.screenshot({ path: shot.replace(/\.png$/, `-${theme}.png`), fullPage: true });
  }
  ok("all themes keep a contrast of 4.5");
}

/** Runs in the page: texts whose contrast to the background is below 4.5:1. */
function contrastFailures() {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (text) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = text;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (el) => { for (let e = el; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 250) return c; } return [255, 255, 255, 255]; };
  const low = new Set();
  for (const el of document.querySelectorAll("#app *")) {
    if (![...el.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || el.closest(".sr, .skip, svg, details:not([open]) > :not(summary)")) continue;
    const [a, b] = [light(rgba(getComputedStyle(el).color)), light(behind(el))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) low.add(`${el.tagName}.${el.className}: ${ratio.toFixed(2)}`);
  }
  return [...low];
}

async function checkLogs(page) {
  await page.click("nav a[href='#/logs']");
  await page.waitForSelector("#main .card", { timeout: waitMs });
  if (shot) await page.screenshot({ path: shot.replace(/\.png$/, "-logs.png"), fullPage: true });
  ok("the heads of the logs are shown");
}

/** Without the console the page says so, and recovers by itself when the console is back. */
async function checkLost(page) {
  await page.evaluate(() => { location.hash = "#/"; });
  await page.waitForSelector("tr[data-node]", { timeout: waitMs });
  const before = problems.length;
  await page.context().setOffline(true);
  await page.keyboard.press("r");
  await page.waitForSelector(".lost[role=alert]", { timeout: waitMs });
  assert.ok((await page.locator("tr[data-node]").count()) > 0, "the last known state is gone");
  await page.context().setOffline(false);
  await page.waitForSelector(".lost", { state: "detached", timeout: waitMs });
  problems.length = before; // failed requests were the point
  ok("a lost connection is said, and found again");
}
