import { test } from "node:test";
import assert from "node:assert/strict";
import type { Incident, Queue, TimelineEntry } from "./api.ts";
import { fold, items } from "./fold.ts";
import { merge, narrow, parseLabels } from "./series.ts";
import { layout } from "./layout.ts";
import { bytes, clock, number, percent, rate, seconds, span, whole } from "./format.ts";

function check<T>(f: (v: T) => string, rows: [T, string][]) {
  for (const [input, want] of rows) assert.equal(f(input), want, `${f.name}(${input})`);
}

test("rates", () => check(rate, [[null, "–"], [NaN, "–"], [0, "0"], [0.001, "<0.01"], [0.4, "0.4"], [9.999, "10"], [12.34, "12.3"], [999.6, "1,000"], [12_345, "12.3 k"], [2.5e6, "2.5 M"]]));
test("seconds", () => check(seconds, [[null, "–"], [0, "0"], [0.000084, "84 µs"], [0.0012, "1.2 ms"], [0.25, "250 ms"], [3.4, "3.4 s"], [1, "1 s"], [120, "120 s"]]));
test("percent", () => check(percent, [[null, "–"], [0, "0 %"], [0.0001, "<0.1 %"], [0.0123, "1.23 %"], [1, "100 %"]]));
test("spans", () => check(span, [[null, "–"], [0, "0 s"], [59.9, "59 s"], [60, "1 min"], [3600, "1 h"], [7500, "2 h 5 min"], [90000, "1 d 1 h"]]));
test("whole", () => check(whole, [[null, "–"], [1234.4, "1,234"]]));
test("bytes", () => check(bytes, [[null, "–"], [0, "0 B"], [1023, "1023 B"], [1024, "1 KiB"], [5.25e7, "50.1 MiB"], [4e12, "3.64 TiB"], [-2048, "-2 KiB"]]));
test("numbers", () => check(number, [[null, "–"], [NaN, "–"], [0, "0"], [0.0001, "1.00e-4"], [-0.25, "-0.25"], [12.34, "12.3"], [123456.7, "123,457"], [2e15, "2.00e+15"]]));
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
  // One pool with several names, and a remark in parentheses, are no boxes of their own.
  const pools = layout([queue("http", "http-poll", "http workers"), queue("commits", "API workers", "commit-* (one queue each, by account)")]);
  assert.deepEqual(pools.boxes.map((b) => b.name), ["http-poll", "API workers", "commit"]);
});

const entry = (seq: number, node: string, kind: string, minute: number, incident: number | null = null): TimelineEntry =>
  ({ seq, at: new Date(minute * 60_000).toISOString(), node, kind, severity: "info", reason: null, number: null, detail: null, because: null, incident });

test("the timeline folds what repeats", () => {
  // Newest first: two alike of a, one of b in between; then another kind; then one that is too long ago.
  const lines = fold([entry(6, "a", "reloaded", 30), entry(5, "b", "reloaded", 29), entry(4, "a", "reloaded", 28), entry(3, "a", "started", 27), entry(2, "a", "reloaded", 26), entry(1, "a", "reloaded", 10)]);
  assert.deepEqual(lines.map((line) => [line.entry.seq, line.times]), [[6, 2], [5, 1], [3, 1], [2, 1], [1, 1]]);
  assert.equal(lines[0]!.since, entry(4, "a", "", 28).at);
});

test("an incident is one item of the timeline, where its newest entry is", () => {
  const incident: Incident = { id: 2, since: "", until: null, nodes: [], lines: 3 };
  // The incident of the last entry is not in the answer.
  const told = items([entry(9, "a", "x", 9), entry(8, "b", "x", 8, 2), entry(7, "c", "x", 7), entry(5, "d", "x", 5, 2), entry(4, "d", "x", 4, 1)], [incident]);
  assert.deepEqual(told.map((item) => ("entry" in item ? item.entry.seq : item.entries.map((e) => e.seq))), [9, [8, 5], 7, 4]);
});

test("series of several nodes stand over one time", () => {
  const answer = (id: string, timesMs: number[], points: (number | null)[]) => ({ asOf: "", id, name: "m", kind: "value" as const, stepSeconds: null, timesMs, series: [{ labels: "", points }], truncated: false });
  const both = merge([answer("a", [1000, 3400], [1, 3]), answer("b", [2900, 3900], [null, 4])], ["a", "b"], 1000);
  assert.deepEqual(both.timesMs, [1000, 2000, 3000]);
  assert.deepEqual(both.lines.map((l) => [l.label, l.values]), [["a", [1, undefined, 3]], ["b", [undefined, null, 4]]]);
  assert.deepEqual(merge([answer("a", [1234], [1])], ["a"], 1000).timesMs, [1234], "a single node keeps its times");
  const zoomed = narrow(both, 1500, 2500);
  assert.deepEqual([zoomed.timesMs, zoomed.lines[1]!.values], [[2000], [null]]);
});

test("labels are read as exporters write them", () => {
  assert.deepEqual(parseLabels('queue="http",why="a \\"b\\", c"'), [["queue", '"http"'], ["why", '"a \\"b\\", c"']]);
  assert.deepEqual(parseLabels(""), []);
});
