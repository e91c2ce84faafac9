// The whole state is the address: one flat query string with the names of the Python API. What is at its default is left
// out. A control changes the state, the state changes the address, and everything else is drawn from the state.

export const VIEWS = ["step", "scale", "plan", "budget"];

/** State of the page alone: never part of a question. */
const PAGE = {
  view: "step",
  metric: "tokens_per_s_per_gpu",
  counts: "8..2048",
  objective: "tokens_per_s",
  colour: "tokens_per_s_per_gpu",
};
const BUDGET = ["days", "usd", "mwh", "tokens_max", "family", "law"];

export class State {
  constructor(catalog, listener) {
    this.controls = new Map(catalog.controls.map((control) => [control.name, control]));
    this.defaults = { ...PAGE };
    for (const control of catalog.controls) {
      if (control.group !== "plan" && control.default !== null) this.defaults[control.name] = String(control.default);
    }
    for (const [name, value] of Object.entries(catalog.defaults)) this.defaults[name] = String(value);
    this.listener = listener;
    this.gesture = null;
    this.values = this.parse(location.search);
    this.due = null;
    addEventListener("pagehide", () => this.flush());
    addEventListener("popstate", () => {
      if (this.due) clearTimeout(this.due.timer);
      this.due = null;
      this.gesture = null;
      this.values = this.parse(location.search);
      this.listener({ startedAt: performance.now(), names: null });
    });
  }

  /** The values of a query string. */
  parse(search) {
    /** @type {Record<string, string>} */
    const values = {};
    for (const [name, value] of new URLSearchParams(search)) if (value !== "") values[name] = value;
    if (!VIEWS.includes(values.view)) delete values.view;
    return values;
  }

  /** The value of a name, or its default; "" where knee chooses. */
  get(name, values = this.values) {
    if (name === "local_batch" && values.global_batch !== undefined) return "";
    return values[name] ?? this.defaults[name] ?? "";
  }

  isSet(name, values = this.values) {
    return values[name] !== undefined;
  }

  /** The query string of a state, in a fixed order, so that equal states have equal addresses. */
  query(values = this.values) {
    const order = ["view", "model", "cluster", "gpus", "local_batch", "global_batch"];
    const place = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
    const names = Object.keys(values)
      .filter((name) => values[name] !== this.defaults[name])
      .sort((a, b) => place(a) - place(b) || a.localeCompare(b));
    const text = new URLSearchParams(names.map((name) => [name, values[name]])).toString();
    // these need no escape in the value of a query, and people read addresses
    return text.replace(/%(2C|3A|2F|3D|7C)/g, decodeURIComponent);
  }

  address(values = this.values) {
    const query = this.query(values);
    return query ? `?${query}` : location.pathname;
  }

  /** The values after some changes (null: back to the default). */
  changed(patch) {
    const next = { ...this.values };
    for (const [name, value] of Object.entries(patch)) {
      if (value === null || value === "" || String(value) === this.defaults[name]) delete next[name];
      else next[name] = String(value);
    }
    if ("local_batch" in patch && patch.local_batch !== null) delete next.global_batch;
    if ("global_batch" in patch && patch.global_batch !== null) delete next.local_batch;
    return next;
  }

  /**
   * Changes some values (null: back to the default). Changes of one gesture, such as a drag, make one entry in the
   * browser's history, so that Back undoes what a person did and not each pixel of it.
   */
  set(patch, { startedAt = performance.now(), gesture = null, quiet = false } = {}) {
    const before = this.query(),
      continues = quiet || (gesture !== null && gesture === this.gesture);
    if (!continues) this.flush();
    this.values = this.changed(patch);
    if (this.query() === before) return;
    this.record(continues ? "replaceState" : "pushState");
    if (!quiet) this.gesture = gesture;
    this.listener({ startedAt, names: Object.keys(patch), quiet });
  }

  /**
   * The address follows the state a moment later: writing it takes milliseconds that charts need, and browsers refuse
   * more than some hundred changes a minute.
   */
  record(how) {
    this.due ??= { how, timer: setTimeout(() => this.flush(), 200) };
  }

  flush() {
    if (!this.due) return;
    clearTimeout(this.due.timer);
    history[this.due.how](null, "", this.address());
    this.due = null;
  }

  /** A control was released: the next change is another entry of the history. */
  endGesture() {
    this.gesture = null;
  }

  /** Everything anew, such as a preset; the view stays unless the new state names one. */
  replaceAll(query) {
    const view = this.get("view");
    this.flush();
    this.gesture = null;
    this.values = { ...(view === "step" ? {} : { view }), ...this.parse(query) };
    history.pushState(null, "", this.address());
    this.listener({ startedAt: performance.now(), names: null });
  }

  /** A value as the JSON API takes it. */
  typed(name, text) {
    const kind = this.controls.get(name)?.kind;
    if (kind === "switch") return text === "true";
    if (kind === "words") return text.split(/[-+,\s]+/).filter(Boolean);
    if (kind === "choice" || kind === undefined) return text;
    const number = Number(text);
    return Number.isFinite(number) ? number : text;
  }

  /** The question as keyword arguments of knee's functions. */
  question(values = this.values, { plan = true, run = true } = {}) {
    const body = {};
    for (const control of this.controls.values()) {
      if (control.group === "plan" && !plan && !control.kept) continue;
      if (control.group === "run" && !run) continue;
      const text = this.get(control.name, values);
      if (text === "" || (control.group !== "job" && text === this.defaults[control.name])) continue;
      body[control.name] = this.typed(control.name, text);
    }
    return withOverrides(body, values);
  }

  /** The curves of the Scale view, each as what it changes in the question; [{}] where there is only the question. */
  curves(values = this.values) {
    if (values.curves === undefined) return [{}];
    return values.curves.split("|").map((text) => {
      const changes = this.parse(text),
        body = {};
      for (const [name, value] of Object.entries(changes))
        if (!name.startsWith("set.")) body[name] = this.typed(name, value);
      return withOverrides(body, changes);
    });
  }

  /** The limits of a budget, with the GPUs of the question as the most that may be used. */
  limits(values = this.values) {
    const body = { cluster: this.get("cluster", values), gpus: Number(this.get("gpus", values)) };
    for (const name of ["seq_len", "profile"])
      if (this.isSet(name, values)) body[name] = this.typed(name, values[name]);
    withOverrides(body, values);
    for (const name of BUDGET) {
      const text = values[name];
      if (text !== undefined) body[name] = ["family", "law"].includes(name) ? text : Number(text);
    }
    if (["days", "usd", "mwh"].every((name) => body[name] === undefined)) body.days = 30;
    return body;
  }

  /** The state that is compared with, or null. */
  pinned() {
    return this.values.compare === undefined ? null : this.parse(this.values.compare);
  }
}

/** `set.fabric.nic_bytes_per_s=200 Gbit/s` of an address -> the question's overrides. */
function withOverrides(body, values) {
  const set = Object.entries(values).filter(([name]) => name.startsWith("set."));
  if (set.length) body.overrides = Object.fromEntries(set.map(([name, value]) => [name.slice(4), value]));
  return body;
}
