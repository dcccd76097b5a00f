/** The page: files and keys in, findings out. */
import { type Given, examine, trustOf } from "./examine.js";

/** Largest file that is read, in bytes. */
const FILE_BYTES_MAX = 16 * 1024 * 1024;

function by<T extends HTMLElement>(id: string, kind: new () => T): T {
  const element = document.getElementById(id);
  if (!(element instanceof kind)) throw new Error(`the page has no ${id}`);
  return element;
}

const logs = by("logs", HTMLTextAreaElement);
const manifestKey = by("manifest-key", HTMLInputElement);
const place = by("place", HTMLElement);
const chosen = by("files", HTMLInputElement);
const clear = by("clear", HTMLButtonElement);
const results = by("results", HTMLElement);

let given: Given[] = [];

function element(name: string, content: string, className = ""): HTMLElement {
  const made = document.createElement(name);
  // Never as HTML: the content comes from files.
  made.textContent = content;
  made.className = className;
  return made;
}

function show(): void {
  const findings = examine(given, { logs: logs.value, manifestKey: manifestKey.value });
  const cards = findings.map(({ verdict, title, facts }) => {
    const card = element("section", "", `card ${verdict}`);
    card.dataset["verdict"] = verdict;
    const word = { verified: "✓ Verified", refused: "✗ Refused", open: "… Incomplete" }[verdict];
    const list = document.createElement("dl");
    for (const [name, value] of facts) list.append(element("dt", name), element("dd", value));
    card.append(element("h2", `${word}: ${title}`), list);
    return card;
  });
  results.replaceChildren(...cards);
  results.dataset["files"] = String(given.length);
  clear.hidden = given.length === 0;
}

async function add(files: Iterable<File>): Promise<void> {
  for (const file of files) {
    if (file.size > FILE_BYTES_MAX) {
      results.replaceChildren(element("p", `${file.name} is larger than ${FILE_BYTES_MAX} bytes`));
      return;
    }
    const read = { name: file.name, bytes: new Uint8Array(await file.arrayBuffer()) };
    const trust = trustOf(read);
    if (trust?.logs !== undefined) logs.value = trust.logs;
    if (trust?.manifestKey !== undefined) manifestKey.value = trust.manifestKey;
    if (trust === undefined) given = [...given.filter((other) => other.name !== read.name), read];
  }
  show();
}

for (const input of [logs, manifestKey]) input.addEventListener("input", show);
chosen.addEventListener("change", () => {
  void add([...(chosen.files ?? [])]).finally(() => (chosen.value = ""));
});
clear.addEventListener("click", () => {
  given = [];
  show();
});
for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    place.classList.add("over");
  });
}
document.addEventListener("dragleave", () => place.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  place.classList.remove("over");
  void add([...(event.dataTransfer?.files ?? [])]);
});
show();
