// Builds verify.html, one file that needs nothing else, from src/ and the TypeScript SDK.
//
//   node build.mjs [OUTPUT]      (verify.html beside this file when absent)
//
// The same sources and the same lock file of sdk/typescript give the same bytes.

import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const here = (name) => fileURLToPath(new URL(name, import.meta.url));
const sdk = createRequire(here("../typescript/package.json"));
const { rolldown } = await import(sdk.resolve("rolldown"));

const bundle = await rolldown({
  // Names in the output do not depend on where this program is started.
  cwd: here("."),
  input: here("src/page.ts"),
  platform: "browser",
  logLevel: "warn",
  resolve: { extensionAlias: { ".js": [".ts", ".js"] } },
});
const { output } = await bundle.generate({ format: "iife", minify: false });
const script = output[0].code.replaceAll("</script", "<\\/script");
const style = readFileSync(here("src/page.css"), "utf8");
const hash = (text) => createHash("sha256").update(text).digest("base64");
const parts = { script, style, "script-hash": hash(script), "style-hash": hash(style) };
const page = readFileSync(here("src/page.html"), "utf8").replace(/\{\{([a-z-]+)\}\}/g, (_, name) => parts[name]);
writeFileSync(process.argv[2] ?? here("verify.html"), page);
