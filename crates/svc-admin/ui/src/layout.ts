// Where the boxes of the topology stand: pure, so that it can be tested without a page.

import type { Queue } from "./api.ts";

export interface Box { name: string; column: number; row: number }
export interface Way {
  from: Box; to: Box; queue: Queue;
  /** Which of the ways between these two boxes it is. */
  lane: number; lanes: number;
  /** A queue with several givers is named once. */
  named: boolean;
}
export interface Plan { boxes: Box[]; ways: Way[]; columns: number; rows: number; heights: number[] }

/** The pool that reads requests has these names. */
const API = ["API", "http workers", "request handlers"];
/** A pool is named with or without the mark of its number; here it is one box. What is in parentheses is a remark. */
const several = (text: string) => text.replace(/\([^)]*\)/g, "").split(",").map((word) => word.trim().replace(/-\*?$/, "")).filter(Boolean).map((word) => (API.includes(word) ? "API workers" : word));

/** Givers left of takers; a way that would close a circle goes back. */
export function layout(queues: Queue[]): Plan {
  const boxes = new Map<string, Box>();
  const box = (name: string) => {
    if (!boxes.has(name)) boxes.set(name, { name, column: 0, row: 0 });
    return boxes.get(name)!;
  };
  const ways: Way[] = [];
  for (const queue of queues) {
    if (!queue.from || !queue.to) continue;
    let named = true;
    for (const from of several(queue.from)) for (const to of several(queue.to)) {
      ways.push({ from: box(from), to: box(to), queue, lane: 0, lanes: 1, named });
      named = false;
    }
  }
  columns(ways, [...boxes.values()]);
  const heights: number[] = [];
  for (const b of boxes.values()) {
    b.row = heights[b.column] ?? 0;
    heights[b.column] = b.row + 1;
  }
  for (const way of ways) {
    const same = ways.filter((other) => other.from === way.from && other.to === way.to);
    way.lane = same.indexOf(way);
    way.lanes = same.length;
  }
  return { boxes: [...boxes.values()], ways, columns: heights.length, rows: Math.max(0, ...heights), heights };
}

/** Each box one column right of its farthest giver, circles left out. */
function columns(ways: Way[], boxes: Box[]) {
  const onTheWay = new Set<Box>();
  const place = (b: Box, column: number) => {
    if (onTheWay.has(b)) return;
    b.column = Math.max(b.column, column);
    onTheWay.add(b);
    for (const way of ways) if (way.from === b && way.to.column <= b.column) place(way.to, b.column + 1);
    onTheWay.delete(b);
  };
  const taken = new Set(ways.map((way) => way.to));
  const sources = boxes.filter((b) => !taken.has(b));
  const seen = new Set<Box>();
  const walk = (b: Box) => { if (!seen.has(b)) { seen.add(b); ways.filter((way) => way.from === b).forEach((way) => walk(way.to)); } };
  for (const source of sources) { place(source, 0); walk(source); }
  // What only circles lead to begins at the left.
  for (const b of boxes) if (!seen.has(b)) { place(b, 0); walk(b); }
  // No column stays empty.
  const used = [...new Set(boxes.map((b) => b.column))].sort((a, b) => a - b);
  for (const b of boxes) b.column = used.indexOf(b.column);
}
