// Series of several nodes over one time axis: pure, so that it can be tested without a page.

import type { Num, QueryAnswer } from "./api.ts";

/** A value that is undefined is no hole of its series: another node was polled at that time. */
export interface Course { label: string; node: string; labels: string; values: (Num | undefined)[] }
export interface Courses { timesMs: number[]; lines: Course[] }

/** The series of all answers; a series is named by its node where there are several, and by its labels. Samples of several nodes are put into cells of `cellMs`. */
export function merge(answers: QueryAnswer[], nodes: string[], cellMs: number): Courses {
  const cell = (a: QueryAnswer, ms: number) => (nodes.length > 1 && a.stepSeconds === null ? Math.floor(ms / cellMs) * cellMs : ms);
  const timesMs = [...new Set(answers.flatMap((a) => a.timesMs.map((ms) => cell(a, ms))))].sort((a, b) => a - b);
  const at = new Map(timesMs.map((ms, i) => [ms, i]));
  const lines = answers.flatMap((a) => a.series.map((s) => {
    const values: (Num | undefined)[] = new Array(timesMs.length).fill(undefined);
    a.timesMs.forEach((ms, i) => { values[at.get(cell(a, ms))!] = s.points[i] ?? null; });
    const name = [nodes.length > 1 || !s.labels ? a.id : "", s.labels].filter(Boolean).join(" ");
    return { label: name, node: a.id, labels: s.labels, values };
  }));
  return { timesMs, lines };
}

/** What lies between two times. */
export function narrow({ timesMs, lines }: Courses, fromMs: number, toMs: number): Courses {
  const keep = timesMs.map((ms) => ms >= fromMs && ms <= toMs);
  return { timesMs: timesMs.filter((_, i) => keep[i]), lines: lines.map((l) => ({ ...l, values: l.values.filter((_, i) => keep[i]) })) };
}

/** Names and quoted values of a label block, as written. */
export function parseLabels(text: string): [string, string][] {
  return [...text.matchAll(/(\w+)=("(?:[^"\\]|\\.)*")/g)].map((m) => [m[1]!, m[2]!]);
}
