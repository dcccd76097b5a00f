// Every word of the page, in every language it speaks. A missing key is a type error.

const en = {
  title: "ron console", skip: "Skip to content", fleet: "Fleet", logs: "Keys and logs", settings: "Settings",
  healthy: "Healthy", degraded: "Degraded", down: "Down", unknown: "Unknown",
  readOnly: "Read-only", readOnlyHint: "This console shows; it changes nothing.",
  allHealthy: "All {n} services are healthy", oneHealthy: "The only service is healthy", attention: "{k} of {n} services need attention", attentionOne: "1 of {n} services needs attention",
  noNodes: "No services are configured", noNodesHint: "Add a [[nodes]] section with id and health_url to the configuration of svc-admin.",
  requests: "Requests", requestsPerSecond: "Requests per second", perSecond: "req/s", slowest: "Slowest p99", servicesHealthy: "Services healthy", restarts: "Restarts",
  lastMinutes: "last {n} min", traffic: "Traffic", trafficHint: "without health checks and scrapes",
  state: "State", service: "Service", services: "Services", why: "Why", uptime: "Uptime", seen: "Last answer", p99: "p99",
  search: "Filter services", all: "All", problems: "Problems", noMatch: "No service matches.", clear: "Clear the filter",
  ago: "{t} ago", never: "never", now: "just now", updated: "Updated {t}", stale: "stale", forSpan: "for {t}",
  lost: "Connection to the console lost", lostHint: "Showing what was known at {t}. Trying again.", paused: "Refresh is off",
  loading: "Reading the fleet …", notReported: "not reported", asTable: "Show as table", time: "Time",
  sharedLog: "Shared log", sharedLogHint: "its part in a log that several nodes share", role: "Role", activeNode: "active node", standbyNode: "standby", sharedWriter: "writes, as its other nodes do", sharedWriterAway: "does not write now: its end was not read lately", logEpoch: "Epoch", activeSince: "Active since", entries: "Entries",
  entriesBehind: "{n} behind", database: "Database", partitionsAhead: "{n} partitions ahead", oldestTransaction: "oldest transaction {n} ago", noStandby: "The database has no standby.",
  databaseStandby: "Standby of the database", replication: "Replication", behindBytes: "Bytes behind", synchronous: "synchronous", asynchronous: "asynchronous",
  planes: "Planes", planesHint: "the parts that can fail on their own", plane: "Plane", ready: "Ready", yes: "yes", no: "no", reason: "Reason",
  latency: "Request time", errors: "Server errors", errorShare: "Server errors", errorsHint: "share of 5xx answers",
  queues: "Queues", queuesHint: "all queues are bounded", queue: "Queue", fill: "Depth", whenFull: "When full", dropped: "Dropped", rejected: "Rejected",
  lastKnown: "The service does not answer. The data below is from", neverAnswered: "The service has never answered.", routesPast: "over the window before its last answer, busiest first",
  topology: "Topology", topologyHint: "which thread passes work to which, and how full each queue is",
  threads: "Threads", thread: "Thread", live: "Live", job: "Job",
  routes: "Routes", routesHint: "over the window, busiest first", route: "Route", quietRoutes: "{n} more routes were not called yet.", total: "Total", refused: "Refused (4xx)",
  version: "Version", instance: "Instance", environment: "Environment", profile: "Profile", amnesia: "Keeps data", amnesiaYes: "in memory only", amnesiaNo: "on disk",
  healthPort: "Health port", apiPort: "API", polling: "Sampling", pollsFailed: "{p} polls, {f} failed", series: "{n} series", pollTook: "{t} each",
  back: "All services", notFound: "There is no such service", notFoundHint: "It is not in the configuration of this console.",
  theme: "Theme", system: "System", light: "Light", dark: "Dark", redEye: "Red-eye", language: "Language", refresh: "Refresh", every: "every {t}", off: "off", timeZone: "Times", local: "Local", utc: "UTC",
  shortcuts: "Keyboard", scSearch: "filter services", scHelp: "keyboard shortcuts", scRefresh: "refresh now", scFleet: "all services", close: "Close",
  signIn: "Sign in", signInHint: "This command opens the console signed in:", signInPaste: "Or paste a passport for svc-admin with the scope admin:view. The browser gets a cookie that no script can read; the session ends when nobody has used it for some time, or when the passport is revoked.", token: "Passport", signInBad: "The console did not accept it: {why}",
  codeHint: "This link signs the browser in with a passport. Continue only if you have just run ron console yourself.", codeReplace: "This link signs the browser in with another passport and ends the session of {name}. Continue only if you have just run ron console yourself.",
  logsTitle: "Verifiable logs", logsHint: "heads as published; anyone can verify them", log: "Log", size: "Entries", root: "Root", verdict: "Signature", verified: "Verified", unverified: "Not checked", failed: "Failed", unreachable: "Unreachable", unchanged: "Checkpoint age", noLogs: "No node with a log has an api_url.",
  other: "others", chartLabel: "{title}, {n} series over the {w}. Latest: {latest}. Arrow keys move the cursor.", noTraffic: "No samples yet",
  epochs: "Epochs", audit: "Audit", actionsEnabled: "Actions enabled", actionsHint: "This console may act on services: {a}.",
  signOut: "Sign out", signedIn: "Signed in as", roles: "Roles", authMode: "Access", authNone: "all local users", authIngress: "users authenticated by the proxy", authPassport: "holders of a passport",
  about: "This console", preferences: "Preferences", preferencesHint: "kept in this browser", interval: "Polls each service", window: "Keeps samples for", allowed: "Allowed actions", noActions: "none: it is read-only",
  showMore: "Show {n} more of {m}", notSeenYet: "Not polled yet", oldData: "This data is old", oldDataHint: "The last poll was {t} ago.",
  witness: "Witnesses", noWitness: "none configured", witnessSigned: "{n} signed", witnessMissing: "{n} missing", consistency: "Since last head", firstReading: "First reading", unchangedHead: "Unchanged", proven: "Proven", notProven: "Not proven", broken: "Broken", from: "from {n}",
  epochsTitle: "Reward epochs", epochsHint: "epochs that need attention first; amounts in minor units", epoch: "Epoch", progress: "Progress", pool: "Pool", paid: "Paid out", residual: "Residual", recipients: "Recipients", updatedAt: "Changed", noEpochs: "No epoch was run yet.", noRewarder: "No rewarder answered yet.", epochsUnread: "Epochs of {n} cannot be read: {why}", dryRun: "dry run", truncated: "There are more epochs than are shown.", left: "{t} left",
  timeline: "Timeline", timelineHint: "what happened in the fleet, newest first", evInfo: "as expected", evWarn: "warning", evError: "error", evWarnUp: "Warnings and errors", evErrorOnly: "Errors", newest: "Newest", older: "Older", noEvents: "Nothing happened yet.", eventsUnread: "Events of {n} cannot be read: {why}", repeated: "{n} times since", because: "because of",
  untilNow: "until now", until: "until", was: "was", andOthers: "and {n} more", incidentOver: "Over after {t}", incidentOn: "Ongoing for {t}", affected: "Also affected:", showLines: "Show its {n} lines", hideLines: "Hide its {n} lines", linesElsewhere: "{n} more lines are on other pages, or left out by the filter.", removed: "no longer watched by this console",
  explore: "Explore", exploreHint: "any metric of the last minutes; a few for seven days", findMetric: "Find a metric", metric: "Metric", compareWith: "Compare with …", labels: "Labels", keptLong: "Kept for seven days", keptShort: "Samples of the last minutes", zoom: "Zoom", zoomIn: "Zoom in", zoomOut: "Show all", zoomedTo: "{a} to {b}", perSecondOf: "per second", sampled: "samples of the last {t}", everyStep: "one point every {t}", moreSeries: "{n} more series match: choose labels.", seriesTruncated: "A service has more series than one answer carries: choose labels.", someMissing: "Some services gave no answer.", notKeptYet: "Not reported yet: the first point comes when a minute has ended.", noSuchMetric: "Not reported: these services have no such series now.", nothingThere: "No point lies in this time.", longer: "Seven days",
  keysTitle: "Keys", keysHint: "of the key services that the console may read", key: "Key", keyVersion: "Version", nextRotation: "Next rotation", backend: "Kept by", onRequest: "on request", waitingVersion: "v{n} is published", destroyedAt: "secrets destroyed:", noKeys: "No key service answered yet.", keysUnread: "Keys of {n} cannot be read: {why}", lastKnown2: "Shown is what was read", keysTruncated: "{n} keys are shown, and there are more. All of them:", approvalsTruncated: "{n} requests are shown, and more wait. Those of a key, and all of them:", k_active: "Active", k_retired: "Retired", k_pending_destruction: "To be destroyed", k_destroyed: "Destroyed", k_quarantined: "Quarantined",
  approvals: "Waiting for approvals", approvalsHint: "operations that several people have to agree to", approvedOf: "{n} of {m}", lapses: "Lapses", inTime: "in {t}", issuer: "Issuer", epochNow: "Revocation epoch", revocations: "Revocations and changes", policyVersion: "Policy version", signsFrom: "Signs from", verifiesUntil: "Verifies until", kSigns: "Signs", kNext: "Published, signs later", kVerifies: "Verifies only", kRevoked: "Revoked",
  ev_started: "started", ev_ready: "ready", ev_not_ready: "stopped taking writes:", ev_not_ready_cleared: "no longer stopped by", ev_degraded: "weakened:", ev_degraded_cleared: "no longer weakened by", ev_thread_restarted: "a thread crashed and was restarted:", ev_thread_lost: "a thread crashed too often and is gone:", ev_fatal: "the process ends", ev_reloaded: "configuration reloaded:", ev_reload_refused: "configuration refused:", ev_date_accepted: "an operator accepted the date", ev_breaker_opened: "calls to another service are suspended", ev_breaker_closed: "calls to another service work again", ev_key_changed: "key changed:", ev_policy_adopted: "policy in force:", ev_policy_refused: "policy refused:", ev_revoked: "revoked:", ev_log_role: "role in the shared log:", ev_epoch_state: "an epoch is", ev_draining: "shutting down",
  auditTitle: "Audit", auditHint: "requested actions, their callers and results", who: "Who", what: "What", result: "Result", detail: "Detail", noAudit: "No action was requested yet.", notDurable: "Kept in memory only: set data_dir to keep the audit over a restart.", auditDropped: "{n} lines arrived too fast and are in the log only.", from_: "from",
  rDone: "done", rDenied: "denied", rFailed: "failed", rUnknown: "outcome unknown", rStarted: "started", aReload: "Reload", aShutdown: "Shut down", aSession: "Sign-in", aOther: "Other",
  actions: "Actions", actReload: "Reload configuration", actShutdown: "Shut down", confirmTitle: "{a} {n}?", confirmHint: "Type the name of the service to confirm.", confirmGo: "Confirm", cancel: "Cancel", acted: "{a}: {r}", actFailed: "{a} failed: {why}", nothingChanged: "nothing changed", askNow: "Poll now", gShortcut: "go to timeline, explore, epochs, audit, logs, settings",
};

export type Key = keyof typeof en;

const es: Record<Key, string> = {
  title: "consola ron", skip: "Ir al contenido", fleet: "Flota", logs: "Claves y registros", settings: "Ajustes",
  healthy: "Sano", degraded: "Degradado", down: "Caído", unknown: "Desconocido",
  readOnly: "Solo lectura", readOnlyHint: "Esta consola muestra; no cambia nada.",
  allHealthy: "Los {n} servicios están sanos", oneHealthy: "El único servicio está sano", attention: "{k} de {n} servicios requieren atención", attentionOne: "1 de {n} servicios requiere atención",
  noNodes: "No hay servicios configurados", noNodesHint: "Añada una sección [[nodes]] con id y health_url a la configuración de svc-admin.",
  requests: "Peticiones", requestsPerSecond: "Peticiones por segundo", perSecond: "pet/s", slowest: "p99 más lento", servicesHealthy: "Servicios sanos", restarts: "Reinicios",
  lastMinutes: "últimos {n} min", traffic: "Tráfico", trafficHint: "sin sondeos de salud ni métricas",
  state: "Estado", service: "Servicio", services: "Servicios", why: "Motivo", uptime: "En marcha", seen: "Última respuesta", p99: "p99",
  search: "Filtrar servicios", all: "Todos", problems: "Problemas", noMatch: "Ningún servicio coincide.", clear: "Quitar el filtro",
  ago: "hace {t}", never: "nunca", now: "ahora mismo", updated: "Actualizado {t}", stale: "antiguo", forSpan: "desde hace {t}",
  lost: "Se perdió la conexión con la consola", lostHint: "Se muestra lo conocido a las {t}. Reintentando.", paused: "Actualización desactivada",
  loading: "Leyendo la flota …", notReported: "no informado", asTable: "Ver como tabla", time: "Hora",
  sharedLog: "Registro compartido", sharedLogHint: "su parte en un registro que comparten varios nodos", role: "Papel", activeNode: "nodo activo", standbyNode: "en espera", sharedWriter: "escribe, como sus otros nodos", sharedWriterAway: "no escribe ahora: no se ha leído su final últimamente", logEpoch: "Época", activeSince: "Activo desde", entries: "Entradas",
  entriesBehind: "{n} de retraso", database: "Base de datos", partitionsAhead: "{n} particiones por delante", oldestTransaction: "transacción más antigua hace {n}", noStandby: "La base de datos no tiene réplica.",
  databaseStandby: "Réplica de la base de datos", replication: "Replicación", behindBytes: "Bytes de retraso", synchronous: "síncrona", asynchronous: "asíncrona",
  planes: "Planos", planesHint: "las partes que pueden fallar por separado", plane: "Plano", ready: "Listo", yes: "sí", no: "no", reason: "Motivo",
  latency: "Duración de peticiones", errors: "Errores del servidor", errorShare: "Errores del servidor", errorsHint: "proporción de respuestas 5xx",
  queues: "Colas", queuesHint: "todas tienen límite", queue: "Cola", fill: "Ocupación", whenFull: "Si está llena", dropped: "Descartados", rejected: "Rechazados",
  lastKnown: "El servicio no responde. Los datos de abajo son de", neverAnswered: "El servicio nunca ha respondido.", routesPast: "en la ventana anterior a su última respuesta, primero las más usadas",
  topology: "Topología", topologyHint: "qué hilo pasa trabajo a cuál, y cómo de llena está cada cola",
  threads: "Hilos", thread: "Hilo", live: "Vivos", job: "Tarea",
  routes: "Rutas", routesHint: "en la ventana, las más usadas primero", route: "Ruta", quietRoutes: "{n} rutas más no se han llamado todavía.", total: "Total", refused: "Rechazadas (4xx)",
  version: "Versión", instance: "Instancia", environment: "Entorno", profile: "Perfil", amnesia: "Guarda datos", amnesiaYes: "solo en memoria", amnesiaNo: "en disco",
  healthPort: "Puerto de salud", apiPort: "API", polling: "Muestreo", pollsFailed: "{p} sondeos, {f} fallidos", series: "{n} series", pollTook: "{t} cada uno",
  back: "Todos los servicios", notFound: "No existe ese servicio", notFoundHint: "No está en la configuración de esta consola.",
  theme: "Tema", system: "Sistema", light: "Claro", dark: "Oscuro", redEye: "Nocturno rojo", language: "Idioma", refresh: "Actualizar", every: "cada {t}", off: "no", timeZone: "Horas", local: "Local", utc: "UTC",
  shortcuts: "Teclado", scSearch: "filtrar servicios", scHelp: "atajos de teclado", scRefresh: "actualizar ahora", scFleet: "todos los servicios", close: "Cerrar",
  signIn: "Entrar", signInHint: "Esta orden abre la consola con la sesión iniciada:", signInPaste: "O pegue un pasaporte para svc-admin con el ámbito admin:view. El navegador recibe una cookie que ningún script puede leer; la sesión termina cuando nadie la usa durante un tiempo, o cuando se revoca el pasaporte.", token: "Pasaporte", signInBad: "La consola no lo aceptó: {why}",
  codeHint: "Este enlace inicia la sesión con un pasaporte. Continúe solo si acaba de ejecutar ron console.", codeReplace: "Este enlace inicia la sesión con otro pasaporte y termina la sesión de {name}. Continúe solo si acaba de ejecutar ron console.",
  logsTitle: "Registros verificables", logsHint: "cabezas publicadas; cualquiera puede comprobarlas", log: "Registro", size: "Entradas", root: "Raíz", verdict: "Firma", verified: "Verificada", unverified: "Sin comprobar", failed: "Fallida", unreachable: "Inaccesible", unchanged: "Edad del punto de control", noLogs: "Ningún nodo con registro tiene api_url.",
  other: "otros", chartLabel: "{title}, {n} series en {w}. Último: {latest}. Las flechas mueven el cursor.", noTraffic: "Aún sin muestras",
  epochs: "Épocas", audit: "Auditoría", actionsEnabled: "Acciones activas", actionsHint: "Esta consola puede actuar sobre los servicios: {a}.",
  signOut: "Salir", signedIn: "Sesión de", roles: "Roles", authMode: "Acceso", authNone: "todos en esta máquina", authIngress: "usuarios autenticados por el proxy", authPassport: "quien tenga un pasaporte",
  about: "Esta consola", preferences: "Preferencias", preferencesHint: "se guardan en este navegador", interval: "Consulta cada servicio", window: "Guarda muestras durante", allowed: "Acciones permitidas", noActions: "ninguna: es de solo lectura",
  showMore: "Mostrar {n} más de {m}", notSeenYet: "Aún sin consultar", oldData: "Estos datos son antiguos", oldDataHint: "La última consulta fue hace {t}.",
  witness: "Testigos", noWitness: "ninguno configurado", witnessSigned: "{n} firmaron", witnessMissing: "faltan {n}", consistency: "Desde la última cabeza", firstReading: "Primera lectura", unchangedHead: "Sin cambios", proven: "Probada", notProven: "Sin probar", broken: "Rota", from: "desde {n}",
  epochsTitle: "Épocas de recompensa", epochsHint: "primero las que requieren atención; importes en unidades mínimas", epoch: "Época", progress: "Progreso", pool: "Fondo", paid: "Pagado", residual: "Resto", recipients: "Receptores", updatedAt: "Cambió", noEpochs: "Aún no se ha ejecutado ninguna época.", noRewarder: "Ningún servicio de recompensas ha respondido.", epochsUnread: "No se pueden leer las épocas de {n}: {why}", dryRun: "simulacro", truncated: "Hay más épocas de las que se muestran.", left: "faltan {t}",
  timeline: "Cronología", timelineHint: "lo ocurrido en la flota, lo más reciente primero", evInfo: "previsto", evWarn: "aviso", evError: "error", evWarnUp: "Avisos y errores", evErrorOnly: "Errores", newest: "Lo más reciente", older: "Anteriores", noEvents: "Aún no ha ocurrido nada.", eventsUnread: "No se pueden leer los eventos de {n}: {why}", repeated: "{n} veces desde", because: "a causa de",
  untilNow: "hasta ahora", until: "hasta", was: "estuvo", andOthers: "y {n} más", incidentOver: "Terminó tras {t}", incidentOn: "Dura ya {t}", affected: "También afectados:", showLines: "Mostrar sus {n} líneas", hideLines: "Ocultar sus {n} líneas", linesElsewhere: "{n} líneas más están en otras páginas o las oculta el filtro.", removed: "esta consola ya no lo vigila",
  explore: "Explorar", exploreHint: "cualquier métrica de los últimos minutos; algunas de siete días", findMetric: "Buscar una métrica", metric: "Métrica", compareWith: "Comparar con …", labels: "Etiquetas", keptLong: "Se guardan siete días", keptShort: "Muestras de los últimos minutos", zoom: "Ampliación", zoomIn: "Ampliar", zoomOut: "Ver todo", zoomedTo: "de {a} a {b}", perSecondOf: "por segundo", sampled: "muestras de los últimos {t}", everyStep: "un punto cada {t}", moreSeries: "Hay {n} series más: elija etiquetas.", seriesTruncated: "Un servicio tiene más series de las que caben en una respuesta: elija etiquetas.", someMissing: "Algunos servicios no respondieron.", notKeptYet: "Aún no informado: el primer punto llega cuando termina un minuto.", noSuchMetric: "No informado: estos servicios no tienen ahora esa serie.", nothingThere: "No hay ningún punto en ese tiempo.", longer: "Siete días",
  keysTitle: "Claves", keysHint: "de los servicios de claves que la consola puede leer", key: "Clave", keyVersion: "Versión", nextRotation: "Próxima rotación", backend: "La guarda", onRequest: "a petición", waitingVersion: "v{n} está publicada", destroyedAt: "secretos destruidos:", noKeys: "Ningún servicio de claves ha respondido.", keysUnread: "No se pueden leer las claves de {n}: {why}", lastKnown2: "Se muestra lo leído", keysTruncated: "Se muestran {n} claves, y hay más. Todas:", approvalsTruncated: "Se muestran {n} solicitudes, y esperan más. Las de una clave, y todas:", k_active: "Activa", k_retired: "Retirada", k_pending_destruction: "Se va a destruir", k_destroyed: "Destruida", k_quarantined: "En cuarentena",
  approvals: "Esperan aprobación", approvalsHint: "operaciones en las que varias personas deben estar de acuerdo", approvedOf: "{n} de {m}", lapses: "Caduca", inTime: "en {t}", issuer: "Emisor", epochNow: "Época de revocación", revocations: "Revocaciones y cambios", policyVersion: "Versión de la política", signsFrom: "Firma desde", verifiesUntil: "Verifica hasta", kSigns: "Firma", kNext: "Publicada, firmará después", kVerifies: "Solo verifica", kRevoked: "Revocada",
  ev_started: "iniciado", ev_ready: "listo", ev_not_ready: "dejó de aceptar escrituras:", ev_not_ready_cleared: "ya no lo detiene", ev_degraded: "debilitado:", ev_degraded_cleared: "ya no lo debilita", ev_thread_restarted: "un hilo falló y se reinició:", ev_thread_lost: "un hilo falló demasiadas veces y ya no está:", ev_fatal: "el proceso termina", ev_reloaded: "configuración recargada:", ev_reload_refused: "configuración rechazada:", ev_date_accepted: "un operador aceptó la fecha", ev_breaker_opened: "llamadas a otro servicio suspendidas", ev_breaker_closed: "las llamadas a otro servicio vuelven a funcionar", ev_key_changed: "clave modificada:", ev_policy_adopted: "política en vigor:", ev_policy_refused: "política rechazada:", ev_revoked: "revocado:", ev_log_role: "papel en el registro compartido:", ev_epoch_state: "una época está", ev_draining: "apagándose",
  auditTitle: "Auditoría", auditHint: "acciones solicitadas, quién las pidió y su resultado", who: "Quién", what: "Qué", result: "Resultado", detail: "Detalle", noAudit: "Aún no se ha solicitado ninguna acción.", notDurable: "Solo en memoria: defina data_dir para conservar la auditoría tras un reinicio.", auditDropped: "{n} líneas llegaron demasiado rápido y solo están en el registro.", from_: "desde",
  rDone: "hecho", rDenied: "denegado", rFailed: "fallido", rUnknown: "resultado desconocido", rStarted: "iniciado", aReload: "Recargar", aShutdown: "Apagar", aSession: "Entrada", aOther: "Otra",
  actions: "Acciones", actReload: "Recargar configuración", actShutdown: "Apagar", confirmTitle: "¿{a} {n}?", confirmHint: "Escriba el nombre del servicio para confirmar.", confirmGo: "Confirmar", cancel: "Cancelar", acted: "{a}: {r}", actFailed: "{a} falló: {why}", nothingChanged: "sin cambios", askNow: "Consultar ya", gShortcut: "ir a cronología, explorar, épocas, auditoría, registros, ajustes",
};

const packs: Record<string, Record<Key, string>> = { "en-US": en, "es-ES": es };
export const languages: [string, string][] = [["en-US", "English"], ["es-ES", "Español"]];

let pack: Record<Key, string> = en;

export function setLanguage(code: string) {
  pack = packs[code] ?? en;
  document.documentElement.lang = packs[code] ? code : "en-US";
}

/** The words for `key`, with `{name}` replaced from `values`. */
/** The words of a key that may not be there, such as one made of what a newer service says. */
export function word(key: string): string | null {
  return key in pack ? pack[key as Key] : null;
}

export function t(key: Key, values: Record<string, string | number> = {}): string {
  return pack[key].replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}
