// The console: frame, settings and routes. Everything it knows comes from the JSON API beside it.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { HttpError, setToken, type LogHeads, type Me, type Overview, type UiConfig } from "./api.ts";
import { Age, Card, StateIcon } from "./bits.tsx";
import { Fleet } from "./fleet.tsx";
import { clock, span, whole } from "./format.ts";
import { languages, setLanguage, t, type Key } from "./i18n.ts";
import { useLive, useRoute, useSecond, useSetting, type Live } from "./live.ts";
import { NodeView } from "./node.tsx";
import "./app.css";

const THEMES: [string, Key][] = [["system", "system"], ["light", "light"], ["dark", "dark"], ["red-eye", "redEye"]];
const REFRESH = ["2", "5", "15", "60", "0"];

function App() {
  const config = useLive<UiConfig>("api/ui-config", 0);
  const ui = config.data;
  const [theme, setTheme] = useSetting("theme", ui?.defaultTheme ?? "system");
  const [language, setLang] = useSetting("language", navigator.language.startsWith("es") ? "es-ES" : "en-US");
  const [zone, setZone] = useSetting("zone", "local");
  const [every, setEvery] = useSetting("refresh", "5");
  const [, signedIn] = useState(0);
  const route = useRoute();
  setLanguage(language);
  const shown = useTheme(theme);
  const utc = zone === "utc";
  const everyMs = Number(every) * 1000;
  const overview = useLive<Overview>("api/overview", everyMs);
  useSecond();

  useEffect(() => {
    const bad = overview.data ? overview.data.nodes.length - overview.data.counts.healthy : 0;
    document.title = (bad ? `(${bad}) ` : "") + t("title");
  }, [overview.data, language]);

  const help = useRef<HTMLDialogElement>(null);
  useKeys({ help, refresh: overview.refresh });

  const refused = overview.error instanceof HttpError && (overview.error.status === 401 || overview.error.status === 403);
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>{t("skip")}</a>
      <header class="top">
        <a class="brand" href="#/"><svg width="26" height="26" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" class="mark" /><path d="M7 18.5h4.2l2.6-8 4.4 13 2.6-8.5 1.2 3.5h3" class="pulse" /></svg><b>ron</b></a>
        <nav aria-label={t("title")}>
          <a href="#/" aria-current={route.path[0] !== "logs" ? "page" : undefined}>{t("fleet")}</a>
          <a href="#/logs" aria-current={route.path[0] === "logs" ? "page" : undefined}>{t("logs")}</a>
        </nav>
        <span class="grow" />
        {ui?.readOnly && <span class="lock" title={t("readOnlyHint")}><svg width="12" height="12" viewBox="0 0 12 12" aria-hidden="true"><path d="M3 5V3.6a3 3 0 0 1 6 0V5h.5c.3 0 .5.2.5.5v5c0 .3-.2.5-.5.5h-7a.5.5 0 0 1-.5-.5v-5c0-.3.2-.5.5-.5H3Zm1.2 0h3.6V3.6a1.8 1.8 0 0 0-3.6 0V5Z" fill="currentColor" /></svg>{t("readOnly")}</span>}
        <Pulse live={overview} off={everyMs === 0} />
        <Settings {...{ theme, setTheme, language, setLang, zone, setZone, every, setEvery, ui }} />
      </header>
      {overview.error && !refused && overview.okAt !== null && (
        <div class="lost" role="alert"><StateIcon state="down" /> <b>{t("lost")}.</b> {t("lostHint", { t: clock(overview.okAt, utc) })}</div>
      )}
      <main id="main" tabIndex={-1} class={overview.error && overview.data ? "frozen" : ""}>
        {refused ? <SignIn why={overview.error!.message} done={() => { signedIn((n) => n + 1); overview.refresh(); }} />
          : route.path[0] === "nodes" && route.path[1] ? <NodeView key={route.path[1]} id={route.path[1]} everyMs={everyMs} utc={utc} theme={shown} />
          : route.path[0] === "logs" ? <Logs everyMs={everyMs} utc={utc} />
          : overview.data ? <Fleet overview={overview.data} route={route} utc={utc} theme={shown} />
          : overview.error ? <div class="empty" role="alert"><h1>{t("lost")}</h1><p>{overview.error.message}</p></div>
          : <p class="none" role="status">{t("loading")}</p>}
      </main>
      <footer>{ui && <>svc-admin {ui.version} · {ui.instance} · <Who /></>}</footer>
      <dialog ref={help} aria-label={t("shortcuts")}>
        <h2>{t("shortcuts")}</h2>
        <dl class="keys">{([["/", "scSearch"], ["r", "scRefresh"], ["f", "scFleet"], ["?", "scHelp"]] as [string, Key][]).map(([k, w]) => <div><dt><kbd>{k}</kbd></dt><dd>{t(w)}</dd></div>)}</dl>
        <button type="button" class="chip" onClick={() => help.current?.close()}>{t("close")}</button>
      </dialog>
    </>
  );
}

/** Sets the theme on the root; returns what is in force, so that charts can follow. */
function useTheme(theme: string): string {
  const [dark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const media = matchMedia("(prefers-color-scheme: dark)");
    const onChange = () => setDark(media.matches);
    media.addEventListener("change", onChange);
    return () => media.removeEventListener("change", onChange);
  }, []);
  const shown = theme === "system" ? (dark ? "dark" : "light") : theme;
  document.documentElement.dataset["theme"] = shown;
  return shown;
}

function useKeys({ help, refresh }: { help: { current: HTMLDialogElement | null }; refresh: () => void }) {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const at = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (at.closest("input, textarea, select")) { if (event.key === "Escape") at.blur(); return; }
      const act: Record<string, () => void> = {
        "/": () => dispatchEvent(new Event("ron:search")), "?": () => help.current?.showModal(), r: refresh, f: () => { location.hash = "#/"; },
      };
      if (act[event.key]) { event.preventDefault(); act[event.key]!(); }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [refresh]);
}

function Pulse({ live, off }: { live: Live<Overview>; off: boolean }) {
  const age = live.okAt === null ? null : (Date.now() - live.okAt) / 1000;
  const words = live.error ? t("lost") : off ? t("paused") : age === null ? t("loading") : t("updated", { t: age < 2 ? t("now") : t("ago", { t: span(age) }) });
  return <button type="button" class={`beat${live.error ? " bad" : off ? " off" : ""}`} onClick={live.refresh} title={t("scRefresh")}><i aria-hidden="true" />{words}</button>;
}

interface Choice { theme: string; setTheme: (v: string) => void; language: string; setLang: (v: string) => void; zone: string; setZone: (v: string) => void; every: string; setEvery: (v: string) => void; ui: UiConfig | null }

function Settings(c: Choice) {
  const box = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const onClick = (event: Event) => { if (box.current && !box.current.contains(event.target as Node)) box.current.open = false; };
    const onKey = (event: KeyboardEvent) => { if (event.key === "Escape" && box.current?.open) { box.current.open = false; box.current.querySelector("summary")?.focus(); } };
    addEventListener("click", onClick);
    addEventListener("keydown", onKey);
    return () => { removeEventListener("click", onClick); removeEventListener("keydown", onKey); };
  }, []);
  const pick = (label: string, value: string, set: (v: string) => void, options: [string, string][]) => (
    <label>{label}<select value={value} onChange={(e) => set(e.currentTarget.value)}>{options.map(([v, words]) => <option value={v} selected={v === value}>{words}</option>)}</select></label>
  );
  return (
    <details class="settings" ref={box}>
      <summary aria-label={t("settings")} title={t("settings")}><svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true"><path d="M2 5h7m5 0h2M2 13h2m5 0h7M9 5a2.5 2.5 0 1 0 5 0 2.5 2.5 0 0 0-5 0ZM4 13a2.5 2.5 0 1 0 5 0 2.5 2.5 0 0 0-5 0Z" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" /></svg></summary>
      <div class="sheet">
        {pick(t("theme"), c.theme, c.setTheme, THEMES.map(([v, k]) => [v, t(k)]))}
        {pick(t("refresh"), c.every, c.setEvery, REFRESH.map((v) => [v, v === "0" ? t("off") : t("every", { t: span(Number(v)) })]))}
        {pick(t("timeZone"), c.zone, c.setZone, [["local", t("local")], ["utc", t("utc")]])}
        {pick(t("language"), c.language, c.setLang, languages)}
      </div>
    </details>
  );
}

function Who() {
  const me = useLive<Me>("api/me", 0).data;
  return <>{me ? `${me.subject} (${me.roles.join(", ")})` : "–"}</>;
}

function SignIn({ why, done }: { why: string; done: () => void }) {
  const [value, setValue] = useState("");
  return (
    <form class="signin card" onSubmit={(e) => { e.preventDefault(); setToken(value); setValue(""); done(); }}>
      <h1>{t("signIn")}</h1>
      <p>{t("signInHint")}</p>
      <label>{t("token")}<input type="password" autoComplete="off" required value={value} onInput={(e) => setValue(e.currentTarget.value)} /></label>
      <p class="quiet">{t("signInBad", { why })}</p>
      <button type="submit" class="go">{t("signIn")}</button>
    </form>
  );
}

function Logs({ everyMs, utc }: { everyMs: number; utc: boolean }) {
  const live = useLive<LogHeads>("api/log-heads", everyMs);
  if (!live.data) return <p class="none" role="status">{live.error ? live.error.message : t("loading")}</p>;
  const state = { verified: "healthy", unverified: "unknown", failed: "down", unreachable: "degraded" } as const;
  return (
    <Card flush title={t("logsTitle")} hint={t("logsHint")}>
      {live.data.logs.length === 0 ? <p class="none">{t("noLogs")}</p> : (
        <div class="scroll"><table>
          <thead><tr><th scope="col">{t("verdict")}</th><th scope="col">{t("log")}</th><th scope="col" class="num">{t("size")}</th><th scope="col">{t("root")}</th><th scope="col" class="num">{t("seen")}</th><th scope="col" class="num">{t("unchanged")}</th></tr></thead>
          <tbody>{live.data.logs.map((l) => (
            <tr>
              <td><span class={`badge b-${state[l.verdict]}`} title={l.reason}><StateIcon state={state[l.verdict]} size={14} />{t(l.verdict)}</span></td>
              <th scope="row">{l.origin ?? l.id}<small>{l.id} · {l.reason}</small></th>
              <td class="num">{whole(l.size)}</td><td><code class="root">{l.root ?? "–"}</code></td>
              <td class="num"><Age at={l.readAt} utc={utc} /></td><td class="num"><Age at={l.unchangedSince} utc={utc} bare /></td>
            </tr>
          ))}</tbody>
        </table></div>
      )}
    </Card>
  );
}

render(<App />, document.getElementById("app")!);
