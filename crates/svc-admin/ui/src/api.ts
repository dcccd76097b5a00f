// The console's JSON API as the page sees it, and one conditional, bounded way to read it.

export type State = "healthy" | "degraded" | "down" | "unknown";
export type Num = number | null;

export interface Reason { code: string; text: string }
export interface Plane { name: string; health: State; ready: boolean; restartCount: number; reason: string | null }
export interface Rates { requestRate: Num; errorRatio: Num; p50Seconds: Num; p95Seconds: Num; p99Seconds: Num }
export interface Tiny { endMs: number; stepMs: number; requestRate: Num[]; p99Seconds: Num[] }
export interface Summary {
  id: string; displayName: string; environment: string;
  service: string | null; instance: string | null; version: string | null; profile: string | null;
  amnesia: boolean | null; uptimeSeconds: Num;
  state: State; reasons: Reason[]; since: string; sampledAt: string | null; polledAt: string | null;
  stale: boolean; restarts: number;
}
export interface OverviewNode { summary: Summary; planes: Plane[]; rates: Rates; series: Tiny }
export interface Overview {
  asOf: string; state: State; counts: Record<State, number>; requestRate: Num;
  intervalSeconds: number; windowSeconds: number; nodes: OverviewNode[];
}
export interface Queue {
  name: string; capacity: Num; overflow: string | null; from: string | null; to: string | null;
  depth: Num; dropped: Num; rejected: Num;
}
export interface Thread { name: string; live: Num; total: Num; restarts: Num; job: string | null }
export interface Polling {
  polls: number; failures: number; consecutiveFailures: number; lastError: string | null;
  lastPollSeconds: Num; series: number; seriesRefused: number; linesSkipped: number;
}
export interface EngineStandby { name: string; synchronous: boolean; behindBytes: Num }
export interface Engine { seenMs: number; server: string; standbys: EngineStandby[]; oldestTransaction: number; partitionsAhead: number }
export interface LogNode {
  node: string; active: boolean; epoch: number; holder: string | null; entries: number; behind: number;
  activeSinceMs: Num; engine: Engine | null;
}
export interface NodeStatus {
  asOf: string; summary: Summary; healthUrl: string; apiUrl: string | null; ready: boolean | null;
  missing: string[]; degraded: string[]; planes: Plane[]; capabilities: string[];
  log: LogNode | null; queues: Queue[]; threads: Thread[]; polling: Polling;
}
export interface MetricsSummary {
  asOf: string; id: string; windowSeconds: number; current: Rates; timesMs: number[];
  requestRate: Num[]; errorRatio: Num[]; p50Seconds: Num[]; p95Seconds: Num[]; p99Seconds: Num[];
}
export interface Facet {
  facet: string; requestRate: Num; errorRatio: Num; refusedRatio: Num;
  p50Seconds: Num; p95Seconds: Num; p99Seconds: Num; requestsTotal: number;
}
export interface FacetList { asOf: string; id: string; windowSeconds: number; facets: Facet[] }
export interface QueryAnswer {
  asOf: string; id: string; name: string; kind: "value" | "rate"; stepSeconds: Num;
  timesMs: number[]; series: { labels: string; points: Num[] }[]; truncated: boolean;
}
export interface MetricNames { asOf: string; id: string; metrics: { name: string; series: number; kept: boolean }[] }
export interface KeyView {
  node: string; key: string; state: string; description: string | null; backend: string | null; version: Num; versionSince: string | null;
  waiting: Num; nextRotation: string | null; destroyAt: string | null; problem: string | null;
}
export interface KeyApproval { node: string; id: string; key: string; op: string; requester: string; needed: number; approvedBy: string[]; created: string; expires: string }
export interface IssuerView {
  node: string; issuer: string; epoch: number; revocations: number; policy: Num;
  keys: { kid: string; alg: string; signsFrom: string; verifiesUntil: string | null; revoked: boolean }[];
}
export interface KeyOverview {
  asOf: string; sources: { node: string; readAt: string | null; problem: string | null; truncated: boolean; approvalsTruncated: boolean }[];
  approvals: KeyApproval[]; keys: KeyView[]; issuers: IssuerView[];
}
export interface LogHead {
  id: string; origin: string | null; size: Num; root: string | null;
  verdict: "verified" | "unverified" | "failed" | "unreachable"; reason: string;
  readAt: string | null; unchangedSince: string | null;
  consistency: "first" | "unchanged" | "proven" | "notProven" | "broken"; comparedWith: Num;
  witnesses: { name: string; signed: boolean }[];
}
export interface LogHeads { asOf: string; logs: LogHead[] }
export interface UiConfig {
  asOf: string; version: string; instance: string; authMode: string; signedIn: boolean; readOnly: boolean; actions: string[];
  intervalSeconds: number; windowSeconds: number; defaultTheme: string; themes: string[];
  defaultLanguage: string; languages: string[];
}
export interface Me { asOf: string; subject: string; tenant: string; roles: string[]; authMode: string }

export interface AuditEntry {
  seq: number; at: string; action: string; node: string | null; subject: string; roles: string[];
  result: "started" | "done" | "denied" | "failed" | "unknown"; reason: string | null; detail: string | null; requestId: string; peer: string;
}
export interface AuditList { asOf: string; durable: boolean; dropped: number; entries: AuditEntry[] }
export interface TimelineEntry {
  seq: number; at: string; node: string; kind: string; severity: "info" | "warn" | "error";
  reason: string | null; number: Num; detail: string | null; because: string | null; incident: Num;
}
export interface IncidentNode { node: string; worst: State; detail: string | null; because: string | null; since: string; until: string | null }
export interface Incident { id: number; since: string; until: string | null; nodes: IncidentNode[]; lines: number }
export interface TimelineList { asOf: string; entries: TimelineEntry[]; incidents: Incident[]; next: Num; unread: { node: string; problem: string }[] }
export interface Epoch {
  node: string; tenant: string; epoch: string; runState: string; reasonCode: string | null; reason: string | null; dryRun: boolean; policy: string;
  assets: EpochAsset[];
  rowsTotal: number; sharesComputed: number; intentsTotal: number; intentsSettled: number; etaMs: Num; attempts: number;
  commitment: string | null; createdAt: string; updatedAt: string;
}
export interface EpochAsset { asset: string | null; poolMinor: string; payoutMinor: string; residualMinor: string; recipients: number }
export interface EpochSource { node: string; readAt: string | null; problem: string | null; truncated: boolean }
export interface EpochList { asOf: string; sources: EpochSource[]; epochs: Epoch[] }
export interface ActionAnswer { asOf: string; id: string; action: string; result: string; changes: string[] }

/** How long one request may take before the page calls the connection lost. */
const TIMEOUT_MS = 8000;

export class HttpError extends Error {
  constructor(readonly status: number, readonly code: string, message: string) {
    super(message);
  }
}

export interface Fetched<T> { data: T; etag: string; serverMs: number | null }

/** After this time without input the page says that nobody uses it, so that polling alone keeps no session open. */
const UNUSED_MS = 60_000;
let inputAt = Date.now();
for (const kind of ["pointerdown", "keydown", "wheel", "touchstart"]) addEventListener(kind, () => { inputAt = Date.now(); }, { passive: true, capture: true });

/** Reads `path`; resolves to null when the server says that what we hold (`etag`) is current. */
export async function get<T>(path: string, etag = "", signal?: AbortSignal): Promise<Fetched<T> | null> {
  const headers: Record<string, string> = { accept: "application/json" };
  if (etag) headers["if-none-match"] = etag;
  if (Date.now() - inputAt > UNUSED_MS) headers["x-ron-idle"] = "1";
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  const reply = await fetch(path, { headers, cache: "no-store", credentials: "same-origin", signal: signal ? AbortSignal.any([signal, limit]) : limit });
  if (reply.status === 304) return null;
  if (!reply.ok) throw await problem(reply);
  const date = Date.parse(reply.headers.get("date") ?? "");
  return { data: (await reply.json()) as T, etag: reply.headers.get("etag") ?? "", serverMs: Number.isNaN(date) ? null : date };
}

/** Sends something that is not a read. The header tells the console that its own page asks. */
export async function send<T>(method: "POST" | "DELETE", path: string, body?: unknown): Promise<T | null> {
  const headers: Record<string, string> = { accept: "application/json", "x-ron-console": "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  const reply = await fetch(path, { method, headers, credentials: "same-origin", signal: AbortSignal.timeout(30_000), ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
  if (!reply.ok) throw await problem(reply);
  return reply.status === 204 ? null : ((await reply.json()) as T);
}

async function problem(reply: Response): Promise<HttpError> {
  const body = await reply.json().catch(() => ({}));
  return new HttpError(reply.status, String(body.code ?? ""), String(body.detail ?? reply.statusText));
}
