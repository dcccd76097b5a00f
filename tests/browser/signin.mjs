// Opens the address that `ron console` prints in a real headless Chromium.
//
//   node signin.mjs ADDRESS
//
// It fails unless the address signs one browser in after a click, by a cookie that scripts cannot read, and ends no session
// before a click. Then it prints `signed in`, and
// waits until the console has ended the session. Chromium is found at $CHROMIUM or /usr/bin/chromium.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const [address] = process.argv.slice(2);
const base = address.split("#")[0];
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const open = async () => {
  const page = await (await browser.newContext()).newPage();
  page.setDefaultTimeout(30_000);
  await page.goto(address, { waitUntil: "load" });
  await page.waitForSelector("[data-code]");
  return page;
};
try {
  const page = await open();
  // A link alone signs nobody in.
  assert.deepEqual(await page.context().cookies(base + "api/overview"), []);
  await page.click("[data-code]");
  await page.waitForSelector("tr[data-node]");
  const code = address.split("=")[1];
  const seen = await page.evaluate(() => document.cookie + location.href + JSON.stringify(history.state));
  assert.ok(!seen.includes(code), "the code stays in the address");
  assert.equal(await page.evaluate(() => document.cookie), "", "scripts can read the cookie");
  const [cookie, ...more] = await page.context().cookies(base + "api/overview");
  assert.deepEqual(more, []);
  assert.deepEqual([cookie.name, cookie.httpOnly, cookie.sameSite], ["ron_admin", true, "Strict"]);
  assert.match(cookie.value, /^[\w-]{43}$/);
  assert.notEqual(cookie.value, code);
  await page.reload();
  await page.waitForSelector("tr[data-node]");
  // The code can be used once: another browser gets the form.
  const other = await open();
  await other.click("[data-code]");
  await other.waitForSelector(".signin input");
  // Nor does a link end a session: the page asks, and cancelling changes nothing.
  const link = await page.context().newPage();
  await link.goto(address, { waitUntil: "load" });
  await link.waitForSelector("[data-code]");
  assert.match(await link.textContent(".signin"), /ends the session of operator/);
  await link.click(".signin button[type=button]");
  await link.waitForSelector("tr[data-node]");
  await link.close();
  console.log("signed in");
  await page.waitForSelector(".signin input");
  console.log("ended");
} finally {
  await browser.close();
}
