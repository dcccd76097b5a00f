// What repeats in the timeline is one line.

import type { TimelineEntry } from "./api.ts";

/** Alike and so close together, in milliseconds: one line. */
const FOLD_MS = 600_000;

export interface Folded { entry: TimelineEntry; times: number; since: string }

/** Entries of one node with the same kind and reason that follow one another without another of that node in between. */
export function fold(entries: TimelineEntry[]): Folded[] {
  const lines: Folded[] = [];
  const last = new Map<string, Folded>();
  for (const entry of entries) {
    const before = last.get(entry.node);
    const e = before?.entry;
    if (before && e && e.kind === entry.kind && e.reason === entry.reason && Date.parse(before.since) - Date.parse(entry.at) < FOLD_MS) {
      before.times += 1;
      before.since = entry.at;
      continue;
    }
    const line = { entry, times: 1, since: entry.at };
    lines.push(line);
    last.set(entry.node, line);
  }
  return lines;
}
