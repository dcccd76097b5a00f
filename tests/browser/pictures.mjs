// Pictures of the console for the documents, in a real headless Chromium.
//
//   node pictures.mjs --url http://127.0.0.1:7490/ --out DIR
//
// The caller controls the processes, as for console.mjs: this script prints `step kill-ledger` and waits for a line on its
// standard input before it goes on.

import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const args = new Map();
for (let i = 2; i < process.argv.length; i += 2) args.set(process.argv[i].replace(/^--/, ""), process.argv[i + 1]);
const base = args.get("url"), out = args.get("out");

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const step = async (name) => { console.log(`step ${name}`); await lines.next(); };

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const page = await browser.newPage({ viewport: { width: 1440, height: 810 }, colorScheme: "light", reducedMotion: "reduce" });
page.setDefaultTimeout(180_000);

const healthy = () => page.locator("tr[data-node][data-state=healthy]").count();

/** Opens a view, waits for what must be on it, and takes the picture. */
async function picture(name, hash, ...selectors) {
  await page.evaluate((h) => { location.hash = h; }, hash);
  for (const selector of selectors) await page.waitForSelector(selector);
  await page.waitForTimeout(500);
  await page.screenshot({ path: `${out}/console-${name}.png`, fullPage: name.startsWith("f") });
  console.log(`ok ${name}`);
}

/** The fleet in which nothing needs attention; on a busy machine a service may be slow for a moment. */
async function allHealthy() {
  for (let left = 20; left > 0; left -= 1) {
    await page.waitForFunction(() => document.querySelectorAll("tr[data-node][data-state=healthy]").length === 6);
    await picture("fleet", "#/", "tr[data-node]");
    if (await healthy() === 6) return;
  }
  throw new Error("the fleet did not stay healthy: take the pictures on an idle machine");
}

try {
  await page.goto(base, { waitUntil: "load" });
  await page.evaluate(() => { localStorage.setItem("ron.theme", "light"); localStorage.setItem("ron.language", "en-US"); localStorage.setItem("ron.refresh", "2"); });
  await page.reload();
  await page.waitForSelector("tr[data-node]");
  await allHealthy();
  await picture("logs", "#/logs", "tr[data-log=ron-ledger][data-verdict=verified]");
  await picture("epochs", "#/epochs", "tr[data-epoch][data-state=settled]");
  await step("kill-ledger");
  await picture("fault", "#/", "tr[data-node=ron-ledger][data-state=down]", "tr[data-node=svc-wallet][data-state=degraded]");
  await picture("timeline", "#/timeline", "tr[data-kind=node_state][data-node=ron-ledger]", "tr[data-kind=node_state][data-node=svc-wallet]");
} finally {
  await browser.close();
}
process.exit(0);
