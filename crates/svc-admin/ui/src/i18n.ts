// Every word of the page, in every language it speaks. A missing key is a type error.

const en = {
  title: "ron console", skip: "Skip to content", fleet: "Fleet", logs: "Logs", settings: "Settings",
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
  planes: "Planes", planesHint: "the parts that can fail on their own", plane: "Plane", ready: "Ready", yes: "yes", no: "no", reason: "Reason",
  latency: "Request time", errors: "Server errors", errorShare: "Server errors", errorsHint: "share of 5xx answers",
  queues: "Queues", queuesHint: "every one is bounded", queue: "Queue", fill: "Depth", whenFull: "When full", dropped: "Dropped", rejected: "Turned away",
  threads: "Threads", thread: "Thread", live: "Live", job: "Job",
  routes: "Routes", routesHint: "over the window, busiest first", route: "Route", quietRoutes: "{n} more routes were not called yet.", total: "Total", refused: "Refused (4xx)",
  version: "Version", instance: "Instance", environment: "Environment", profile: "Profile", amnesia: "Keeps data", amnesiaYes: "in memory only", amnesiaNo: "on disk",
  healthPort: "Health port", apiPort: "API", polling: "Sampling", pollsFailed: "{p} polls, {f} failed", series: "{n} series", pollTook: "{t} each",
  back: "All services", notFound: "There is no such service", notFoundHint: "It is not in the configuration of this console.",
  theme: "Theme", system: "System", light: "Light", dark: "Dark", redEye: "Red-eye", language: "Language", refresh: "Refresh", every: "every {t}", off: "off", timeZone: "Times", local: "Local", utc: "UTC",
  shortcuts: "Keyboard", scSearch: "filter services", scHelp: "this sheet", scRefresh: "refresh now", scFleet: "all services", close: "Close",
  signIn: "Sign in", signInHint: "Paste a passport for svc-admin with the scope admin:view. It stays in this tab and is gone when the tab closes.", token: "Passport", signInBad: "The console did not accept it: {why}",
  logsTitle: "Verifiable logs", logsHint: "heads as published; any stranger can check them", log: "Log", size: "Entries", root: "Root", verdict: "Signature", verified: "Verified", unverified: "Not checked", failed: "Failed", unreachable: "Unreachable", unchanged: "Head since", noLogs: "No node with a log has an api_url.",
  other: "others", chartLabel: "{title}, {n} series over the {w}. Latest: {latest}. Arrow keys move the cursor.", noTraffic: "No samples yet",
};

export type Key = keyof typeof en;

const es: Record<Key, string> = {
  title: "consola ron", skip: "Ir al contenido", fleet: "Flota", logs: "Registros", settings: "Ajustes",
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
  planes: "Planos", planesHint: "las partes que pueden fallar por separado", plane: "Plano", ready: "Listo", yes: "sí", no: "no", reason: "Motivo",
  latency: "Duración de peticiones", errors: "Errores del servidor", errorShare: "Errores del servidor", errorsHint: "proporción de respuestas 5xx",
  queues: "Colas", queuesHint: "todas tienen límite", queue: "Cola", fill: "Ocupación", whenFull: "Si está llena", dropped: "Descartados", rejected: "Rechazados",
  threads: "Hilos", thread: "Hilo", live: "Vivos", job: "Tarea",
  routes: "Rutas", routesHint: "en la ventana, las más usadas primero", route: "Ruta", quietRoutes: "{n} rutas más no se han llamado todavía.", total: "Total", refused: "Rechazadas (4xx)",
  version: "Versión", instance: "Instancia", environment: "Entorno", profile: "Perfil", amnesia: "Guarda datos", amnesiaYes: "solo en memoria", amnesiaNo: "en disco",
  healthPort: "Puerto de salud", apiPort: "API", polling: "Muestreo", pollsFailed: "{p} sondeos, {f} fallidos", series: "{n} series", pollTook: "{t} cada uno",
  back: "Todos los servicios", notFound: "No existe ese servicio", notFoundHint: "No está en la configuración de esta consola.",
  theme: "Tema", system: "Sistema", light: "Claro", dark: "Oscuro", redEye: "Nocturno rojo", language: "Idioma", refresh: "Actualizar", every: "cada {t}", off: "no", timeZone: "Horas", local: "Local", utc: "UTC",
  shortcuts: "Teclado", scSearch: "filtrar servicios", scHelp: "esta hoja", scRefresh: "actualizar ahora", scFleet: "todos los servicios", close: "Cerrar",
  signIn: "Entrar", signInHint: "Pegue un pasaporte para svc-admin con el ámbito admin:view. Se queda en esta pestaña y desaparece al cerrarla.", token: "Pasaporte", signInBad: "La consola no lo aceptó: {why}",
  logsTitle: "Registros verificables", logsHint: "cabezas publicadas; cualquiera puede comprobarlas", log: "Registro", size: "Entradas", root: "Raíz", verdict: "Firma", verified: "Verificada", unverified: "Sin comprobar", failed: "Fallida", unreachable: "Inaccesible", unchanged: "Cabeza desde hace", noLogs: "Ningún nodo con registro tiene api_url.",
  other: "otros", chartLabel: "{title}, {n} series en {w}. Último: {latest}. Las flechas mueven el cursor.", noTraffic: "Aún sin muestras",
};

const packs: Record<string, Record<Key, string>> = { "en-US": en, "es-ES": es };
export const languages: [string, string][] = [["en-US", "English"], ["es-ES", "Español"]];

let pack: Record<Key, string> = en;

export function setLanguage(code: string) {
  pack = packs[code] ?? en;
  document.documentElement.lang = packs[code] ? code : "en-US";
}

/** The words for `key`, with `{name}` replaced from `values`. */
export function t(key: Key, values: Record<string, string | number> = {}): string {
  return pack[key].replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}
