// Settings: what this browser keeps, who is looking, and how this console is set up.

import type { ComponentChildren } from "preact";
import type { Me, UiConfig } from "./api.ts";
import { Card } from "./bits.tsx";
import { span } from "./format.ts";
import { languages, t, type Key } from "./i18n.ts";

const THEMES: [string, Key][] = [["system", "system"], ["light", "light"], ["dark", "dark"], ["red-eye", "redEye"]];
const REFRESH = ["2", "5", "15", "60", "0"];
const MODES: Record<string, Key> = { none: "authNone", ingress: "authIngress", passport: "authPassport" };

export interface Choices {
  theme: string; setTheme: (v: string) => void; language: string; setLang: (v: string) => void;
  zone: string; setZone: (v: string) => void; every: string; setEvery: (v: string) => void;
}

/** The choices, for the sheet in the header and for the settings view. */
export function Pickers(c: Choices) {
  const pick = (label: string, value: string, set: (v: string) => void, options: [string, string][]) => (
    <label>{label}<select value={value} onChange={(e) => set(e.currentTarget.value)}>{options.map(([v, words]) => <option value={v} selected={v === value}>{words}</option>)}</select></label>
  );
  return (
    <>
      {pick(t("theme"), c.theme, c.setTheme, THEMES.map(([v, k]) => [v, t(k)]))}
      {pick(t("refresh"), c.every, c.setEvery, REFRESH.map((v) => [v, v === "0" ? t("off") : t("every", { t: span(Number(v)) })]))}
      {pick(t("timeZone"), c.zone, c.setZone, [["local", t("local")], ["utc", t("utc")]])}
      {pick(t("language"), c.language, c.setLang, languages)}
    </>
  );
}

export function SettingsView({ choices, ui, me, signOut }: { choices: Choices; ui: UiConfig | null; me: Me | null; signOut: () => void }) {
  const fact = (name: string, value: ComponentChildren) => <div><dt>{name}</dt><dd>{value}</dd></div>;
  return (
    <>
      <h1 class="sr">{t("settings")}</h1>
      <div class="pair">
        <Card title={t("preferences")} hint={t("preferencesHint")}><div class="pickers"><Pickers {...choices} /></div></Card>
        <Card title={t("about")}>
          <dl class="facts rows">
            {me && fact(t("signedIn"), <>{me.subject}{me.authMode === "passport" && <> <button type="button" class="chip" onClick={signOut}>{t("signOut")}</button></>}</>)}
            {me && fact(t("roles"), me.roles.join(", ") || "–")}
            {ui && fact(t("authMode"), t(MODES[ui.authMode] ?? "authPassport"))}
            {ui && fact(t("allowed"), ui.readOnly || !ui.actions.length ? t("noActions") : ui.actions.join(", "))}
            {ui && fact(t("interval"), t("every", { t: span(ui.intervalSeconds) }))}
            {ui && fact(t("window"), span(ui.windowSeconds))}
            {ui && fact(t("version"), ui.version)}
            {ui && fact(t("instance"), <code>{ui.instance}</code>)}
          </dl>
        </Card>
      </div>
      <Card title={t("shortcuts")}><Shortcuts /></Card>
    </>
  );
}

const KEYS: [string, Key][] = [["/", "scSearch"], ["r", "scRefresh"], ["f", "scFleet"], ["l", "logs"], ["t", "timeline"], ["x", "explore"], ["e", "epochs"], ["a", "audit"], ["s", "settings"], ["?", "scHelp"]];

export function Shortcuts() {
  return <dl class="keys">{KEYS.map(([key, words]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{t(words)}</dd></div>)}</dl>;
}
