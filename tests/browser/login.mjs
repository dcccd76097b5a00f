// Signs in at an OpenID provider in a real headless Chromium, as a person who was sent to this address.
//
//   node login.mjs ADDRESS NAME [deny]
//
// Prints the text of the page on which the browser ends. Chromium is found at $CHROMIUM or /usr/bin/chromium.

import { chromium } from "playwright-core";

const [address, name, deny] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(30_000);
  // The provider's forms name fonts of another host.
  await page.route("**/*", (route) => (new URL(route.request().url()).hostname === "127.0.0.1" ? route.continue() : route.abort()));
  await page.goto(address, { waitUntil: "domcontentloaded" });
  if (deny) {
    await page.click("a[href$='/abort']");
  } else {
    await page.fill("input[name=login]", name);
    await page.fill("input[name=password]", "any");
    await page.click("button[type=submit]");
    // Consent.
    await page.waitForSelector("input[name=prompt][value=consent]", { state: "attached" });
    await page.click("button[type=submit]");
  }
  await page.waitForURL("**/callback?*");
  console.log(await page.textContent("body"));
} finally {
  await browser.close();
}
