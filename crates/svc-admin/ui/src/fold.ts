// The timeline with less to read: an incident is one entry, and what repeats is one line.

import type { Incident, TimelineEntry } from "./api.ts";

/** Alike and so close together, in milliseconds: one line. */
const FOLD_MS = 600_000;

export interface Folded { entry: TimelineEntry; times: number; since: string }
/** An incident and its entries of this page, newest first. */
export interface Group { incident: Incident; entries: TimelineEntry[] }
export type Item = Folded | Group;

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

/** Incidents and other lines, in the order of their newest entries. */
export function items(entries: TimelineEntry[], incidents: Incident[]): Item[] {
  const groups = new Map<number, Group>(incidents.map((incident) => [incident.id, { incident, entries: [] }]));
  const of = (entry: TimelineEntry) => (entry.incident === null ? undefined : groups.get(entry.incident));
  for (const entry of entries) of(entry)?.entries.push(entry);
  const newest = (item: Item) => ("entry" in item ? item.entry.seq : item.entries[0]!.seq);
  const all: Item[] = [...fold(entries.filter((entry) => !of(entry))), ...[...groups.values()].filter((group) => group.entries.length > 0)];
  return all.sort((a, b) => newest(b) - newest(a));
}
