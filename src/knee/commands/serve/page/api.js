// Requests to the server that this page came from, and to nothing else.

/** What the server refused, with the fields of knee's own errors. */
export class ApiError extends Error {
  constructor(status, { code = "", message = "", field = "", hint = "" } = {}) {
    super(message || `the server answered with status ${status}`);
    this.status = status;
    this.code = code;
    this.field = field;
    this.hint = hint;
  }
}

async function refused(response) {
  const body = await response.json().catch(() => ({}));
  return new ApiError(response.status, body.error ?? {});
}

// with --host the server asks for a token; the address brings it once, in its fragment, which is never sent
const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? sessionStorage.getItem("knee-token");
if (token) {
  sessionStorage.setItem("knee-token", token);
  history.replaceState(null, "", location.pathname + location.search);
}
// clients take turns in the server's queues; a page has several connections and is one client
const client = sessionStorage.getItem("knee-client") ?? Math.random().toString(36).slice(2);
sessionStorage.setItem("knee-client", client);
const headers = (more = {}) => ({ ...more, "X-Knee-Client": client, ...(token ? { Authorization: `Bearer ${token}` } : {}) });

export async function get(path, options = {}) {
  const response = await fetch(path, { headers: headers(), ...options });
  if (!response.ok) throw await refused(response);
  return response.json();
}

/** Links to pages, such as the study's, cannot send the token: a cookie does. */
export const startSession = () => (token ? sent("/api/session", {}) : null);

/**
 * @param {string} path
 * @param {any} body
 * @param {{signal?: AbortSignal, type?: string}} [options]
 */
async function sent(path, body, { signal, type = "application/json" } = {}) {
  const response = await fetch(path, {
    method: "POST",
    signal,
    headers: headers({ "Content-Type": type }),
    body: type === "application/json" ? JSON.stringify(body) : body,
  });
  if (!response.ok) throw await refused(response);
  return response;
}

export const post = async (path, body, options) => (await sent(path, body, options)).json();
export const postForText = async (path, body, options) => (await sent(path, body, options)).text();

/**
 * The newest question wins. While one is being answered, only the newest of the others waits. If the answer takes longer
 * than `patience` milliseconds, and twice as long as the last one, it is given up for the newer one. So charts move while
 * a slider is dragged, also on a busy machine, and the last position is always the one that stays.
 */
export class Latest {
  constructor(ask, patience = 150, idle = () => {}) {
    this.ask = ask;
    this.patience = patience;
    this.idle = idle;
    this.running = null;
    this.waiting = null;
    this.took = 0;
  }

  run(question) {
    this.waiting = question;
    if (!this.running) return this.next();
    const { started, controller } = this.running;
    const left = (this.patience && Math.max(this.patience, 2 * this.took)) - (performance.now() - started);
    setTimeout(
      () => {
        if (this.running?.controller === controller && this.waiting) controller.abort();
      },
      Math.max(0, left),
    );
    return undefined;
  }

  stop() {
    this.waiting = null;
    this.running?.controller.abort();
  }

  async next() {
    const question = this.waiting;
    if (question === null) return;
    this.waiting = null;
    const controller = new AbortController();
    this.running = { controller, started: performance.now() };
    try {
      await this.ask(question, controller.signal);
      if (!controller.signal.aborted) this.took = performance.now() - this.running.started;
    } finally {
      this.running = null;
      if (this.waiting !== null) this.next();
      else this.idle();
    }
  }
}

/** Events of a search as they come: calls `heard(name, data)`. The search ends with the answer or with the signal. */
export async function events(path, body, heard, signal) {
  const response = await sent(path, body, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split(/\r?\n\r?\n/);
    text = blocks.pop();
    for (const block of blocks) {
      const fields = block
        .split(/\r?\n/)
        .map((line) => line.match(/^(event|data): ?(.*)$/))
        .filter(Boolean);
      const name = fields
        .filter((field) => field[1] === "event")
        .map((field) => field[2])
        .join("");
      const data = fields
        .filter((field) => field[1] === "data")
        .map((field) => field[2])
        .join("\n");
      if (name && data) heard(name, JSON.parse(data));
    }
  }
}
