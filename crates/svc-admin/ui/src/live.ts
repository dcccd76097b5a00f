// Live data and settings: hooks that poll with ETags, stop in hidden tabs, and remember the operator's choices.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get, HttpError } from "./api.ts";

export interface Live<T> {
  data: T | null;
  /** The last attempt failed; `data` is what was known before. */
  error: HttpError | Error | null;
  /** When the data was last confirmed current, by this browser's clock. */
  okAt: number | null;
  refresh: () => void;
}

let skewMs = 0;
/** The server's clock as well as this browser knows it. */
export function serverNow(): number { return Date.now() + skewMs; }

/** Polls `path` every `everyMs` (0: once), pausing while the tab is hidden. An empty path asks nothing. */
export function useLive<T>(path: string, everyMs: number): Live<T> {
  const [view, setView] = useState<{ data: T | null; error: Error | null; okAt: number | null }>({ data: null, error: null, okAt: null });
  const held = useRef({ path: "", etag: "" });
  const kick = useRef<() => void>(() => {});

  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let over = false;
    let asking = false;
    const gone = new AbortController();
    if (held.current.path !== path) {
      held.current = { path, etag: "" };
      setView({ data: null, error: null, okAt: null });
    }
    if (!path) { kick.current = () => {}; return; }
    const tick = async () => {
      // One question at a time: a second one would start a second rhythm.
      if (asking) return;
      asking = true;
      clearTimeout(timer);
      try {
        const fetched = await get<T>(path, held.current.etag, gone.signal);
        if (over) return;
        if (fetched) {
          held.current.etag = fetched.etag;
          // `Date` has whole seconds: correct the clock only when the clocks disagree by more than that.
          if (fetched.serverMs !== null) {
            const off = fetched.serverMs + 500 - Date.now();
            skewMs = Math.abs(off) > 2000 ? off : 0;
          }
        }
        setView((v) => ({ data: fetched ? fetched.data : v.data, error: null, okAt: Date.now() }));
      } catch (error) {
        if (over) return;
        setView((v) => ({ ...v, error: error as Error }));
      }
      asking = false;
      if (everyMs > 0 && !document.hidden) timer = setTimeout(tick, everyMs);
    };
    const onShow = () => { if (!document.hidden) void tick(); else clearTimeout(timer); };
    kick.current = () => void tick();
    document.addEventListener("visibilitychange", onShow);
    void tick();
    return () => {
      over = true;
      gone.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onShow);
    };
  }, [path, everyMs]);

  return { ...view, refresh: useCallback(() => kick.current(), []) };
}

export interface Each<T> { data: T[]; error: Error | null; loading: boolean }
const NOTHING: never[] = [];

/** As `useLive`, for several paths at once: what those gave that gave something, and why one did not. */
export function useEach<T>(paths: string[], everyMs: number): Each<T> {
  const all = paths.join("\n");
  const [view, setView] = useState<{ all: string; data: T[]; error: Error | null }>({ all: "", data: NOTHING, error: null });
  useEffect(() => {
    const gone = new AbortController();
    const held = new Map<string, { data: T; etag: string }>();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let asking = false;
    const ask = async (path: string): Promise<Error | null> => {
      try {
        const fetched = await get<T>(path, held.get(path)?.etag, gone.signal);
        if (fetched) held.set(path, fetched);
        return null;
      } catch (error) {
        held.delete(path);
        return error as Error;
      }
    };
    const tick = async () => {
      if (asking) return;
      asking = true;
      clearTimeout(timer);
      const errors = await Promise.all(paths.map(ask));
      if (gone.signal.aborted) return;
      asking = false;
      const data = paths.flatMap((path) => held.get(path)?.data ?? []);
      setView({ all, data, error: errors.find((error) => error !== null) ?? null });
      if (everyMs > 0 && !document.hidden) timer = setTimeout(tick, everyMs);
    };
    const onShow = () => { if (!document.hidden) void tick(); else clearTimeout(timer); };
    document.addEventListener("visibilitychange", onShow);
    if (all) void tick();
    return () => { gone.abort(); clearTimeout(timer); document.removeEventListener("visibilitychange", onShow); };
  }, [all, everyMs]);
  return view.all === all ? { ...view, loading: false } : { data: NOTHING, error: null, loading: all !== "" };
}

/** Re-renders once a second, so that ages move. Still in hidden tabs. */
export function useSecond(): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) setNow(Date.now()); }, 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** A setting kept in local storage, where that is allowed. */
export function useSetting(name: string, fallback: string): [string, (value: string) => void] {
  const key = `ron.${name}`;
  const [value, setValue] = useState(() => { try { return localStorage.getItem(key) ?? fallback; } catch { return fallback; } });
  const set = (next: string) => {
    setValue(next);
    try { localStorage.setItem(key, next); } catch { /* private mode: the choice lasts as long as the page */ }
  };
  return [value, set];
}

export interface Route { path: string[]; query: URLSearchParams }

function readRoute(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

/** The route in the address after `#`, so that reloading and sharing keep the view. */
export function useRoute(): Route {
  const [route, setRoute] = useState(readRoute);
  useEffect(() => {
    const onHash = () => setRoute(readRoute());
    addEventListener("hashchange", onHash);
    return () => removeEventListener("hashchange", onHash);
  }, []);
  return route;
}

/** Changes the query of the route in place, without a step in the history. */
export function setQuery(changes: Record<string, string>) {
  const { path, query } = readRoute();
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value); else query.delete(name);
  }
  const text = query.toString();
  history.replaceState(null, "", `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
