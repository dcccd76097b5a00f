// The node's threads and queues as a picture: who hands work to whom, and how full the way is. The table of queues
// beside it says the same in words.

import type { Queue } from "./api.ts";
import { Card } from "./bits.tsx";
import { whole } from "./format.ts";
import { t } from "./i18n.ts";
import { layout, type Plan } from "./layout.ts";

const BOX_W = 128, BOX_H = 36, GAP_Y = 30, PAD = 14;
/** The picture fits the page's width where the names on the ways leave room. */
const WIDTH = 1290, GAP_MIN = 104, GAP_MAX = 190;

export function Topology({ queues }: { queues: Queue[] }) {
  const plan = layout(queues);
  if (plan.ways.length === 0) return null;
  return (
    <Card title={t("topology")} hint={t("topologyHint")}>
      <div class="scroll" tabIndex={0} role="group" aria-label={t("topology")}><Picture plan={plan} /></div>
    </Card>
  );
}

function Picture({ plan }: { plan: Plan }) {
  const height = plan.rows * (BOX_H + GAP_Y) - GAP_Y + PAD * 2 + 16;
  const GAP_X = Math.min(GAP_MAX, Math.max(GAP_MIN, (WIDTH - 2 * PAD - plan.columns * BOX_W) / Math.max(1, plan.columns - 1)));
  const width = plan.columns * (BOX_W + GAP_X) - GAP_X + PAD * 2;
  const x = (column: number) => PAD + column * (BOX_W + GAP_X);
  // Short columns stand in the middle.
  const y = (column: number, row: number) => PAD + 8 + (row + (plan.rows - plan.heights[column]!) / 2) * (BOX_H + GAP_Y);
  const full = (q: Queue) => q.capacity !== null && q.depth !== null && q.depth >= q.capacity * 0.8;
  const words = (q: Queue) => `${q.name}${q.capacity === null ? "" : ` ${q.depth === null ? "–" : whole(q.depth)} / ${whole(q.capacity)}`}`;
  const label = plan.ways.map((w) => `${w.from.name} → ${w.to.name}: ${words(w.queue)}`).join("; ");
  return (
    <svg class="topology" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8Z" class="tip" /></marker></defs>
      {plan.ways.map((w, i) => {
        const back = w.to.column <= w.from.column;
        const lane = (w.lane - (w.lanes - 1) / 2) * 13;
        const x1 = x(w.from.column) + (back ? BOX_W / 2 : BOX_W), y1 = y(w.from.column, w.from.row) + (back ? 0 : BOX_H / 2 + lane);
        const x2 = x(w.to.column) + (back ? BOX_W / 2 + 12 : 0), y2 = y(w.to.column, w.to.row) + (back ? 0 : BOX_H / 2 + lane);
        // A way back arches over the boxes; one forward swings to its row.
        const top = Math.min(y1, y2) - 18;
        const path = back ? `M${x1} ${y1} C${x1} ${top} ${x2} ${top} ${x2} ${y2 - 2}` : `M${x1} ${y1} C${x1 + GAP_X / 2} ${y1} ${x2 - GAP_X / 2} ${y2} ${x2 - 2} ${y2}`;
        return (
          <g key={i} class={full(w.queue) ? "way full" : "way"}>
            <path d={path} marker-end="url(#tip)" />
            {w.named && <text x={back ? (x1 + x2) / 2 : x2 - 10} y={back ? top + 2 : y2 - 5} text-anchor={back ? "middle" : "end"}>{words(w.queue)}</text>}
          </g>
        );
      })}
      {plan.boxes.map((b) => (
        <g key={b.name} class="box">
          <rect x={x(b.column)} y={y(b.column, b.row)} width={BOX_W} height={BOX_H} rx="9" />
          <text x={x(b.column) + BOX_W / 2} y={y(b.column, b.row) + BOX_H / 2 + 4} text-anchor="middle">{b.name.length > 17 ? `${b.name.slice(0, 16)}…` : b.name}<title>{b.name}</title></text>
        </g>
      ))}
    </svg>
  );
}
