// The console: frame, settings and routes. Everything it knows comes from the JSON API beside it.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { HttpError, send, type Me, type Overview, type UiConfig } from "./api.ts";
import { Audit } from "./audit.tsx";
import { StateIcon } from "./bits.tsx";
import { Epochs } from "./epochs.tsx";
import { Explore } from "./explore.tsx";
import { Fleet } from "./fleet.tsx";
import { clock, span } from "./format.ts";
import { setLanguage, t, type Key } from "./i18n.ts";
import { serverNow, useLive, useRoute, useSecond, useSetting, type Live } from "./live.ts";
import { KeysAndLogs } from "./logs.tsx";
import { NodeView } from "./node.tsx";
import { Timeline } from "./timeline.tsx";
import { Pickers, SettingsView, Shortcuts, type Choices } from "./settings.tsx";
import "./app.css";

const VIEWS: [string, Key][] = [["", "fleet"], ["logs", "logs"], ["timeline", "timeline"], ["explore", "explore"], ["epochs", "epochs"], ["audit", "audit"], ["settings", "settings"]];
/** Intervals after which what is shown is called old. */
const OLD_INTERVALS = 3;

function App() {
  const config = useLive<UiConfig>("api/ui-config", 30_000);
  const ui = config.data;
  const [theme, setTheme] = useSetting("theme", ui?.defaultTheme ?? "system");
  const [language, setLang] = useSetting("language", navigator.language.startsWith("es") ? "es-ES" : "en-US");
  const [zone, setZone] = useSetting("zone", "local");
  const [every, setEvery] = useSetting("refresh", "5");
  const me = useLive<Me>(ui?.signedIn ? "api/me" : "", 60_000);
  const route = useRoute();
  setLanguage(language);
  const shown = useTheme(theme);
  const utc = zone === "utc";
  const everyMs = Number(every) * 1000;
  const overview = useLive<Overview>(ui?.signedIn ? "api/overview" : "", everyMs);
  useSecond();

  useEffect(() => {
    const bad = overview.data ? overview.data.nodes.length - overview.data.counts.healthy : 0;
    document.title = (bad ? `(${bad}) ` : "") + t("title");
  }, [overview.data, language]);

  const help = useRef<HTMLDialogElement>(null);
  useKeys({ help, refresh: overview.refresh });

  const place = VIEWS.some(([path]) => path === route.path[0]) ? route.path[0]! : "";
  const choices: Choices = { theme, setTheme, language, setLang, zone, setZone, every, setEvery };
  const again = () => { config.refresh(); me.refresh(); overview.refresh(); };
  const [pending, setPending] = useState(code);
  const decided = () => { setPending(""); again(); };
  const signOut = () => void send("DELETE", "api/session").then(() => location.reload(), again);
  const oldFor = overview.data && !overview.error ? (serverNow() - Date.parse(overview.data.asOf)) / 1000 : 0;
  const refused = (ui !== null && !ui.signedIn) || overview.error instanceof HttpError && (overview.error.status === 401 || overview.error.status === 403);
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>{t("skip")}</a>
      <header class="top">
        <a class="brand" href="#/"><svg width="26" height="26" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" class="mark" /><path d="M7 18.5h4.2l2.6-8 4.4 13 2.6-8.5 1.2 3.5h3" class="pulse" /></svg><b>ron</b></a>
        {!refused && <nav aria-label={t("title")}>
          {VIEWS.map(([path, words]) => <a key={path} href={`#/${path}`} aria-current={place === path ? "page" : undefined}>{t(words)}</a>)}
        </nav>}
        <span class="grow" />
        {ui?.readOnly && <span class="lock" title={t("readOnlyHint")}><svg width="12" height="12" viewBox="0 0 12 12" aria-hidden="true"><path d="M3 5V3.6a3 3 0 0 1 6 0V5h.5c.3 0 .5.2.5.5v5c0 .3-.2.5-.5.5h-7a.5.5 0 0 1-.5-.5v-5c0-.3.2-.5.5-.5H3Zm1.2 0h3.6V3.6a1.8 1.8 0 0 0-3.6 0V5Z" fill="currentColor" /></svg>{t("readOnly")}</span>}
        {ui && !ui.readOnly && ui.actions.length > 0 && <span class="lock armed" title={t("actionsHint", { a: ui.actions.join(", ") })}>{t("actionsEnabled")}</span>}
        {!refused && <Pulse live={overview} off={everyMs === 0} />}
        <Settings {...choices} />
      </header>
      {overview.error && !refused && overview.okAt !== null && (
        <div class="lost" role="alert"><StateIcon state="down" /> <b>{t("lost")}.</b> {t("lostHint", { t: clock(overview.okAt, utc) })}</div>
      )}
      {ui && everyMs > 0 && oldFor > OLD_INTERVALS * Math.max(ui.intervalSeconds, everyMs / 1000) && (
        <div class="lost old" role="status"><StateIcon state="unknown" /> <b>{t("oldData")}.</b> {t("oldDataHint", { t: span(oldFor) })}</div>
      )}
      <main id="main" tabIndex={-1} class={overview.error && overview.data ? "frozen" : ""}>
        {pending && ui?.authMode === "passport" && (!ui.signedIn || me.data || me.error) ? <Confirm code={pending} name={ui.signedIn ? me.data?.subject ?? "–" : ""} done={decided} />
          : refused ? <SignIn why={overview.error?.message ?? ""} mode={ui?.authMode ?? ""} done={again} />
          : route.path[0] === "nodes" && route.path[1] ? <NodeView key={route.path[1]} id={route.path[1]} everyMs={everyMs} utc={utc} theme={shown} ui={ui} me={me.data} />
          : place === "epochs" ? <Epochs everyMs={everyMs} utc={utc} />
          : place === "timeline" ? <Timeline everyMs={everyMs} utc={utc} query={route.query} />
          : place === "audit" ? <Audit everyMs={everyMs} utc={utc} />
          : place === "settings" ? <SettingsView choices={choices} ui={ui} me={me.data} signOut={signOut} />
          : place === "logs" ? <KeysAndLogs everyMs={everyMs} utc={utc} />
          : place === "explore" && overview.data && ui ? <Explore overview={overview.data} ui={ui} route={route} everyMs={everyMs} utc={utc} theme={shown} />
          : overview.data ? <Fleet overview={overview.data} route={route} utc={utc} theme={shown} />
          : overview.error ?? config.error ? <div class="empty" role="alert"><h1>{t("lost")}</h1><p>{(overview.error ?? config.error)!.message}</p></div>
          : <p class="none" role="status">{t("loading")}</p>}
      </main>
      <footer>{ui && <>svc-admin {ui.version} · {ui.instance} · {me.data ? `${me.data.subject} (${me.data.roles.join(", ")})` : "–"}</>}</footer>
      <dialog ref={help} aria-label={t("shortcuts")}>
        <h2>{t("shortcuts")}</h2>
        <Shortcuts />
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
        "/": () => dispatchEvent(new Event("ron:search")), "?": () => help.current?.showModal(), r: refresh,
        f: () => { location.hash = "#/"; }, l: () => { location.hash = "#/logs"; }, t: () => { location.hash = "#/timeline"; }, x: () => { location.hash = "#/explore"; }, e: () => { location.hash = "#/epochs"; }, a: () => { location.hash = "#/audit"; }, s: () => { location.hash = "#/settings"; },
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

function Settings(c: Choices) {
  const box = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const onClick = (event: Event) => { if (box.current && !box.current.contains(event.target as Node)) box.current.open = false; };
    const onKey = (event: KeyboardEvent) => { if (event.key === "Escape" && box.current?.open) { box.current.open = false; box.current.querySelector("summary")?.focus(); } };
    addEventListener("click", onClick);
    addEventListener("keydown", onKey);
    return () => { removeEventListener("click", onClick); removeEventListener("keydown", onKey); };
  }, []);
  return (
    <details class="settings" ref={box}>
      <summary aria-label={t("settings")} title={t("settings")}><svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true"><path d="M2 5h7m5 0h2M2 13h2m5 0h7M9 5a2.5 2.5 0 1 0 5 0 2.5 2.5 0 0 0-5 0ZM4 13a2.5 2.5 0 1 0 5 0 2.5 2.5 0 0 0-5 0Z" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" /></svg></summary>
      <div class="sheet">
        <Pickers {...c} />
      </div>
    </details>
  );
}

/** The code in the address, from `ron console`; it counts once, so it does not stay there. */
function takeCode(): string {
  const code = /^#code=([\w-]+)$/.exec(location.hash)?.[1] ?? "";
  if (code) history.replaceState(null, "", "#/");
  return code;
}
const code = takeCode();

/** Asks before a code is used: anybody can send a link with one, to sign a person in as somebody else. */
function Confirm({ code, name, done }: { code: string; name: string; done: () => void }) {
  // A code that is void changes nothing: the page goes on with its session, or with the form.
  const enter = (event: Event) => { event.preventDefault(); void send<Me>("POST", "api/session", { code }).then(done, done); };
  return (
    <form class="signin card" onSubmit={enter}>
      <h1>{t("signIn")}</h1>
      <p>{name ? t("codeReplace", { name }) : t("codeHint")}</p>
      <button type="submit" class="go" data-code>{t("signIn")}</button>
      <button type="button" class="chip" onClick={done}>{t("cancel")}</button>
    </form>
  );
}

function SignIn({ why, mode, done }: { why: string; mode: string; done: () => void }) {
  const [value, setValue] = useState("");
  const [bad, setBad] = useState("");
  if (mode === "ingress") return <div class="empty" role="alert"><h1>{t("signIn")}</h1><p>{why}</p></div>;
  const enter = async (event: Event) => {
    event.preventDefault();
    try {
      await send<Me>("POST", "api/session", { token: value.trim() });
      setBad("");
      done();
    } catch (error) {
      setBad((error as Error).message);
    }
    setValue("");
  };
  return (
    <form class="signin card" onSubmit={enter}>
      <h1>{t("signIn")}</h1>
      <p>{t("signInHint")}</p>
      <pre><code>ron console</code></pre>
      <p>{t("signInPaste")}</p>
      <pre><code>ron token --audience svc-admin --scope 'admin:view'</code></pre>
      <label>{t("token")}<input type="password" autoComplete="off" required value={value} onInput={(e) => setValue(e.currentTarget.value)} /></label>
      {bad && <p class="bad" role="alert">{t("signInBad", { why: bad })}</p>}
      <button type="submit" class="go">{t("signIn")}</button>
    </form>
  );
}

render(<App />, document.getElementById("app")!);
