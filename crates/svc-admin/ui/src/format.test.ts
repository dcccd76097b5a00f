import { test } from "node:test";
import assert from "node:assert/strict";
import type { Queue, TimelineEntry } from "./api.ts";
import { fold } from "./fold.ts";
import { layout } from "./layout.ts";
import { clock, percent, rate, seconds, span, whole } from "./format.ts";

function check<T>(f: (v: T) => string, rows: [T, string][]) {
  for (const [input, want] of rows) assert.equal(f(input), want, `${f.name}(${input})`);
}

test("rates", () => check(rate, [[null, "–"], [NaN, "–"], [0, "0"], [0.001, "<0.01"], [0.4, "0.4"], [9.999, "10"], [12.34, "12.3"], [999.6, "1,000"], [12_345, "12.3 k"], [2.5e6, "2.5 M"]]));
test("seconds", () => check(seconds, [[null, "–"], [0, "0"], [0.000084, "84 µs"], [0.0012, "1.2 ms"], [0.25, "250 ms"], [3.4, "3.4 s"], [1, "1 s"], [120, "120 s"]]));
test("percent", () => check(percent, [[null, "–"], [0, "0 %"], [0.0001, "<0.1 %"], [0.0123, "1.23 %"], [1, "100 %"]]));
test("spans", () => check(span, [[null, "–"], [0, "0 s"], [59.9, "59 s"], [60, "1 min"], [3600, "1 h"], [7500, "2 h 5 min"], [90000, "1 d 1 h"]]));
test("whole", () => check(whole, [[null, "–"], [1234.4, "1,234"]]));
test("clock", () => assert.equal(clock(Date.UTC(2024, 0, 2, 3, 4, 5), true), "03:04:05 UTC"));

test("givers stand left of takers, and circles go back", () => {
  const queue = (name: string, from: string, to: string): Queue => ({ name, from, to, capacity: 1, overflow: null, depth: 0, dropped: 0, rejected: 0 });
  const plan = layout([queue("orders", "api, worker", "planner"), queue("jobs", "planner", "worker-*"), queue("lines", "worker-", "audit"), queue("loose", "", "")]);
  const at = Object.fromEntries(plan.boxes.map((b) => [b.name, b.column]));
  assert.deepEqual(at, { api: 0, planner: 1, worker: 2, audit: 3 });
  assert.deepEqual([plan.columns, plan.rows, plan.ways.length], [4, 1, 4]);
  assert.deepEqual(plan.ways.map((w) => w.named), [true, false, true, true]);
  assert.equal(layout([queue("self", "a", "a")]).columns, 1);
  assert.equal(layout([]).ways.length, 0);
});

test("the timeline folds what repeats", () => {
  const entry = (seq: number, node: string, kind: string, minute: number): TimelineEntry =>
    ({ seq, at: new Date(minute * 60_000).toISOString(), node, kind, severity: "info", reason: null, number: null, detail: null, because: null });
  // Newest first: two alike of a, one of b in between; then another kind; then one that is too long ago.
  const lines = fold([entry(6, "a", "reloaded", 30), entry(5, "b", "reloaded", 29), entry(4, "a", "reloaded", 28), entry(3, "a", "started", 27), entry(2, "a", "reloaded", 26), entry(1, "a", "reloaded", 10)]);
  assert.deepEqual(lines.map((line) => [line.entry.seq, line.times]), [[6, 2], [5, 1], [3, 1], [2, 1], [1, 1]]);
  assert.equal(lines[0]!.since, entry(4, "a", "", 28).at);
});
