// Reload and shutdown: shown only where the console may act, done only after the node's name was typed.

import { useRef, useState } from "preact/hooks";
import { send, type ActionAnswer, type Me, type UiConfig } from "./api.ts";
import { t, type Key } from "./i18n.ts";

const NEEDS: Record<string, string> = { reload: "operator", shutdown: "admin" };
const WORDS: Record<string, Key> = { reload: "actReload", shutdown: "actShutdown" };

export function Actions({ id, ui, me, done }: { id: string; ui: UiConfig | null; me: Me | null; done: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [action, setAction] = useState("reload");
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState<{ bad: boolean; words: string } | null>(null);
  const able = (ui?.actions ?? []).filter((name) => me?.roles.includes(NEEDS[name] ?? "admin"));
  if (!able.length) return null;
  const ask = (name: string) => { setAction(name); setTyped(""); setSaid(null); dialog.current?.showModal(); };
  const word = t(WORDS[action] ?? "aOther");
  const go = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const answer = await send<ActionAnswer>("POST", `api/nodes/${encodeURIComponent(id)}/${action}`, { confirm: typed });
      const changes = answer!.changes.length ? `: ${answer!.changes.join("; ")}` : "";
      setSaid({ bad: false, words: t("acted", { a: word, r: answer!.result + changes }) });
    } catch (error) {
      setSaid({ bad: true, words: t("actFailed", { a: word, why: (error as Error).message }) });
    }
    setBusy(false);
    dialog.current?.close();
    done();
  };
  return (
    <div class="actions" role="group" aria-label={t("actions")}>
      {able.map((name) => <button type="button" class={`chip act-${name}`} key={name} onClick={() => ask(name)}>{t(WORDS[name] ?? "aOther")}</button>)}
      {said && <p class={said.bad ? "bad" : "good"} role="status">{said.words}</p>}
      <dialog ref={dialog} aria-labelledby="act-title">
        <form onSubmit={go}>
          <h2 id="act-title">{t("confirmTitle", { a: word, n: id })}</h2>
          <label>{t("confirmHint")}<input value={typed} autoComplete="off" spellcheck={false} placeholder={id} onInput={(e) => setTyped(e.currentTarget.value)} /></label>
          <div class="buttons">
            <button type="button" class="chip" onClick={() => dialog.current?.close()}>{t("cancel")}</button>
            <button type="submit" class="go danger" disabled={typed !== id || busy}>{t("confirmGo")}</button>
          </div>
        </form>
      </dialog>
    </div>
  );
}
