// Opens the verification page from file:// in a real headless Chromium and gives it files, as a person would.
//
//   node verify.mjs --page verify.html [--by drop|input] [--shot out.png] FILE...
//
// Prints the findings as JSON: [{"verdict", "text"}]. Fails when the page asks the network for anything or when the
// browser reports a problem. Chromium is found at $CHROMIUM or /usr/bin/chromium.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { basename, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";

const { values, positionals: files } = parseArgs({
  options: { page: { type: "string" }, by: { type: "string", default: "input" }, shot: { type: "string" } },
  allowPositionals: true,
});
const address = pathToFileURL(resolve(values.page)).href;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const problems = [];
try {
  const context = await browser.newContext({ offline: true, reducedMotion: "reduce" });
  const page = await context.newPage();
  page.on("console", (m) => { if (m.type() === "error" || m.type() === "warning") problems.push(`console ${m.type()}: ${m.text()}`); });
  page.on("pageerror", (e) => problems.push(`page error: ${e.message}`));
  page.on("request", (r) => { if (r.url() !== address) problems.push(`a request: ${r.url()}`); });
  await page.goto(address, { waitUntil: "load" });
  if (values.by === "drop") {
    const content = files.map((path) => ({ name: basename(path), bytes: [...readFileSync(path)] }));
    const transfer = await page.evaluateHandle((all) => {
      const transfer = new DataTransfer();
      for (const { name, bytes } of all) transfer.items.add(new File([new Uint8Array(bytes)], name));
      return transfer;
    }, content);
    await page.dispatchEvent("#place", "drop", { dataTransfer: transfer });
  } else {
    await page.setInputFiles("#files", files);
  }
  await page.waitForSelector("#results [data-verdict]", { timeout: 30_000 });
  const cards = page.locator("#results [data-verdict]");
  const findings = await cards.evaluateAll((all) => all.map((card) => ({ verdict: card.dataset.verdict, text: card.innerText })));
  if (values.shot) await page.screenshot({ path: values.shot, fullPage: true });
  console.log(JSON.stringify(findings));
} finally {
  await browser.close();
}
assert.deepEqual(problems, [], "the browser reported problems");
