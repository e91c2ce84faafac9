// The best parallel plan: the search while it runs, the ranking, the front, and what tensor and pipeline parallelism do.

import { Figure, key, plot } from "./charts.js";
import { el, scroll, table, uid } from "./dom.js";
import { bytes, count, percent, plain, planWords, seconds, signed, usd, watts } from "./format.js";
import { Search } from "./search.js";
import { KEPT_BY_SEARCH } from "./state.js";
import { changed } from "./timing.js";

const { Plot } = window;
const OBJECTIVES = { tokens_per_s: "tokens per second", tokens_per_j: "tokens per joule", usd_per_mtoken: "cost", memory_bytes: "memory" };
const COLUMNS = [
  { title: "rank", key: "rank", number: true, show: (row) => count(row.rank) },
  { title: "plan", key: "plan", raw: (row) => planWords(row.plan), show: (row) => planWords(row.plan) },
  { title: "tokens/s per GPU", key: "tokens_per_s_per_gpu", number: true, show: (row) => count(row.tokens_per_s_per_gpu), down: true },
  { title: "MFU", key: "mfu_frac", number: true, show: (row) => percent(row.mfu_frac), down: true },
  { title: "step", key: "step_s", number: true, show: (row) => seconds(row.step_s) },
  { title: "exposed", key: "exposed_frac", number: true, show: (row) => percent(row.exposed_frac) },
  { title: "bubble", key: "bubble_frac", number: true, show: (row) => percent(row.bubble_frac) },
  { title: "memory", key: "memory_bytes", number: true, show: (row) => bytes(row.memory_bytes) },
  { title: "power", key: "power_w_per_gpu", number: true, show: (row) => watts(row.power_w_per_gpu) },
  { title: "tokens/J", key: "tokens_per_j", number: true, show: (row) => plain(row.tokens_per_j), down: true },
  { title: "$/Mtoken", key: "usd_per_mtoken", number: true, show: (row) => usd(row.usd_per_mtoken) },
  { title: "within 2% of the best", key: "good_frac", number: true, show: (row) => percent(row.good_frac, 0), down: true },
];

const sameAxes = (a, b) => ["dp_shard", "dp_replicate", "tp", "pp", "cp", "ep", "sharding", "schedule", "virtual_stages", "micro_batch", "recompute"].every((name) => String(a?.[name]) === String(b?.[name]));

export class PlanView {
  patience = 0; // a search for an older question is of no use

  constructor(app, { pinned = false } = {}) {
    Object.assign(this, { app, pinned, asked: null, kept: null, sort: { key: "rank", down: false } });
    this.search = new Search((name, data) => { if (name === "best") this.showBest(data.row, "Best so far"); });
    this.best = el("div", { class: "best", hidden: true });
    this.counts = el("p", { class: "small" });
    this.front = new Figure({ title: "Speed against memory", file: "knee-plan-front" });
    this.heat = new Figure({ title: "Tensor against pipeline parallelism", file: "knee-plan-heat" });
    this.sensitivity = new Figure({ title: "Sensitivity of the best plan", file: "knee-plan-sensitivity" });
    this.sensitivity.element.classList.add("wide");
    this.ranking = el("section", { class: "card wide ranking" });
    this.grid = el("div", { class: "grid", hidden: true }, this.ranking, this.front.element, this.heat.element, this.sensitivity.element);
    this.element = el("div", { class: "view plan" }, pinned ? null : this.bench(), this.search.element, this.best, this.counts, this.grid);
  }

  bench() {
    const objective = uid("objective"), only = uid("only"), { state } = this.app;
    this.objective = el("select", { id: objective, onchange: (event) => state.set({ objective: event.target.value }, { startedAt: changed(event) }) },
      Object.entries(OBJECTIVES).filter(([name]) => name !== "memory_bytes").map(([value, words]) => el("option", { value }, words)));
    this.only = el("input", { type: "text", id: only, placeholder: "pp == 1 and tp <= 8", title: "Only plans that meet this condition",
      onchange: (event) => state.set({ only: event.target.value || null }, { startedAt: changed(event) }) });
    this.again = el("button", { type: "button", class: "primary", onclick: (event) => {
      this.asked = null;
      this.app.ask(this.app.panes.find((pane) => pane.view === this), changed(event));
    } }, "Search again");
    return el("div", { class: "bench" }, el("div", { class: "inline" }, el("label", { for: objective }, "Best in"), this.objective),
      el("div", { class: "inline" }, el("label", { for: only }, "Only plans with"), this.only), this.again);
  }

  question(values) {
    const { state } = this.app, body = state.question(values, { plan: false, run: false });
    if (values.objective) body.objective = values.objective;
    if (values.only) body.only = values.only;
    return { kind: "plan", ...body };
  }

  /** Picking a row changes the plan of the question, which the search does not depend on, so it is not repeated. */
  async ask(values, signal) {
    const body = this.question(values), text = JSON.stringify(body);
    if (this.objective) {
      this.objective.value = values.objective ?? "tokens_per_s";
      if (document.activeElement !== this.only) this.only.value = values.only ?? "";
    }
    if (text === this.asked) return this.kept;
    await new Promise((resolve) => setTimeout(resolve, this.asked === null ? 0 : 350)); // while a slider is dragged, nothing starts
    if (signal.aborted) throw new DOMException("a newer question", "AbortError");
    try {
      this.kept = await this.search.start(body, signal);
      this.asked = text;
    } catch (error) {
      if (error.name === "AbortError" && !signal.aborted) this.counts.textContent = "The search was cancelled.";
      throw error;
    }
    return this.kept;
  }

  close() {
    this.search.cancel();
  }

  show(answer, values) {
    this.grid.hidden = false;
    const rows = answer.ranking;
    this.showBest(answer.recommended ?? rows[0], "Recommended", answer.why);
    this.counts.textContent = `${count(answer.counts?.plans)} valid plans, ${count(answer.counts?.simulated)} simulated; the others are provably slower or do not fit.`;
    this.showRanking(rows, values);
    this.showFront(rows, answer.front ?? [], values);
    this.showHeat(answer.heat ?? [], values);
    this.showSensitivity(answer.sensitivity ?? []);
    return { trust: answer.trust, trustOf: "recommended plan: ", plan: undefined, command: answer.command, python: answer.python,
      says: `The search ended. Recommended: ${planWords((answer.recommended ?? rows[0]).plan)}, ${count((answer.recommended ?? rows[0]).tokens_per_s_per_gpu)} tokens per second per GPU.` };
  }

  showBest(row, title, why = "") {
    this.best.hidden = !row;
    if (!row) return;
    this.best.replaceChildren(el("p", { class: "small" }, title), el("p", {}, el("strong", {}, planWords(row.plan))),
      el("p", {}, `${count(row.tokens_per_s_per_gpu)} tokens/s per GPU, step ${seconds(row.step_s)}, memory ${bytes(row.memory_bytes)}. `, why ? `${why.charAt(0).toUpperCase()}${why.slice(1)}.` : ""),
      this.pinned ? "" : el("button", { type: "button", onclick: (event) => this.pick(row, event) }, "Use this plan in all views"));
  }

  /** The plan of a row becomes that of the question; fields at their default are left out of the address. */
  pick(row, event) {
    const patch = {};
    for (const { name, group } of this.app.state.controls.values()) {
      if (group !== "plan" || KEPT_BY_SEARCH.includes(name)) continue;
      // knee would choose these itself, so they are always given
      const value = row.options[name] ?? (["dp_shard", "dp_replicate", "micro_batch", "sharding"].includes(name) ? row.plan[name] : null);
      patch[name] = value === null ? null : Array.isArray(value) ? value.join(",") : String(value);
    }
    this.app.state.set(patch, { startedAt: changed(event) });
  }

  current(values) {
    return (row) => sameAxes(row.plan, Object.fromEntries(Object.keys(row.plan).map((name) => [name, values[name] ?? this.app.state.controls.get(name)?.default])));
  }

  showRanking(rows, values) {
    const { key: by, down } = this.sort, is = this.current(values);
    const sorted = [...rows].sort((a, b) => {
      const [x, y] = [a, b].map((row) => (by === "plan" ? planWords(row.plan) : row[by] ?? -Infinity));
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    });
    const columns = COLUMNS.filter((column) => rows.some((row) => (column.raw ? column.raw(row) : row[column.key]) !== undefined))
      .map((column) => ({ ...column, sorted: column.key === by ? (down ? "descending" : "ascending") : "none",
        show: column.key === "plan" && !this.pinned ? (row) => el("button", { type: "button", class: "plain", "aria-pressed": undefined, onclick: (event) => this.pick(row, event) }, planWords(row.plan)) : column.show }));
    const order = (column) => {
      this.sort = { key: column.key, down: column.key === by ? !down : Boolean(column.down) };
      this.showRanking(rows, values);
      this.ranking.querySelector(`button[data-key="${column.key}"]`)?.focus();
    };
    const arrow = (column) => (column.key === by ? (down ? " ↓" : " ↑") : "");
    this.ranking.replaceChildren(el("h2", {}, "Ranking"), scroll("Ranking", table(this.pinned ? "The best plans" : "The best plans; choosing one makes it the plan of all views. A heading sorts by its column.", columns, sorted, {
      head: (column) => el("button", { type: "button", class: "plain", "data-key": column.key, onclick: () => order(column) }, column.title + arrow(column)),
      rowAttributes: (row) => (is(row) ? { class: "chosen", "aria-current": "true" } : {}) })));
  }

  showFront(rows, front, values) {
    const ranked = new Set(front.map((row) => JSON.stringify(row.plan)));
    const all = [...front, ...rows.filter((row) => !ranked.has(JSON.stringify(row.plan)))].map((row) => ({ ...row, gib: row.memory_bytes / 2 ** 30, onFront: ranked.has(JSON.stringify(row.plan)) }));
    const onFront = all.filter((row) => row.onFront).sort((a, b) => a.gib - b.gib), is = this.current(values);
    this.front.update({
      note: "Plans on the front are beaten by no other in speed, energy and free memory at once. Choose a point to use its plan.",
      legend: [key("on the front", "var(--series-2)", "dot"), key("other plans of the ranking", "var(--edge)", "box")],
      draw: (width) => {
        const svg = plot(`${count(all.length)} plans by memory and tokens per second per GPU; ${count(onFront.length)} are on the front.`, {
          width, height: 300, marginLeft: 52, marginBottom: 40,
          x: { label: "memory per GPU (GiB) →", nice: true, grid: true }, y: { label: "↑ tokens/s per GPU", tickFormat: "~s", nice: true, grid: true },
          marks: [Plot.line(onFront, { x: "gib", y: "tokens_per_s_per_gpu", stroke: "var(--series-2)", strokeOpacity: 0.4 }),
            Plot.dot(all, { x: "gib", y: "tokens_per_s_per_gpu", fill: (row) => (row.onFront ? "var(--series-2)" : "var(--edge)"), r: (row) => (row.onFront ? 5 : 4), symbol: (row) => (row.onFront ? "circle" : "square") }),
            Plot.dot(all.filter(is), { x: "gib", y: "tokens_per_s_per_gpu", stroke: "var(--ink)", strokeWidth: 2, r: 9 }),
            Plot.tip(all, Plot.pointer({ x: "gib", y: "tokens_per_s_per_gpu", title: (row) => `${planWords(row.plan)}\n${count(row.tokens_per_s_per_gpu)} tokens/s per GPU, ${bytes(row.memory_bytes)}\n${plain(row.tokens_per_j)} tokens per joule` }))],
          color: { type: "identity" }, r: { type: "identity" }, symbol: { type: "identity" },
        });
        if (!this.pinned) svg.addEventListener("click", (event) => { if (svg.value) this.pick(svg.value, event); });
        return svg;
      },
      caption: "Plans by speed, energy and memory",
      columns: [...COLUMNS.filter((column) => column.key !== "rank" && column.key !== "good_frac").sort((a, b) => (b.key === "plan") - (a.key === "plan")),
        { title: "on the front", key: "onFront", show: (row) => (row.onFront ? "yes" : "no") }],
      rows: all,
    });
  }

  showHeat(heat, values) {
    const cells = heat.map((cell) => ({ ...cell, value: cell.tokens_per_s_per_gpu ?? null }));
    const known = cells.filter((cell) => cell.value !== null), most = d3.max(known, (cell) => cell.value), least = d3.min(known, (cell) => cell.value);
    const shade = (value) => Math.min(6, Math.floor(((value - least) / Math.max(most - least, 1e-9)) * 6.999));
    const tps = [...new Set(cells.map((cell) => cell.tp))].sort((a, b) => a - b), pps = [...new Set(cells.map((cell) => cell.pp))].sort((a, b) => a - b);
    this.heat.element.hidden = !cells.length;
    this.heat.update({
      note: "Tokens/s per GPU of the best plan with each pair of degrees. Choose a cell to use its plan.",
      draw: (width) => {
        const svg = plot(`Best tokens per second per GPU by tensor and pipeline parallelism: ${known.map((cell) => `tp ${cell.tp} pp ${cell.pp} ${count(cell.value)}`).join(", ")}.`, {
          width, height: Math.max(180, 54 * pps.length + 60), marginLeft: 46, marginBottom: 40, padding: 0.04,
          x: { type: "band", domain: tps, label: "tensor parallelism (tp) →" }, y: { type: "band", domain: pps, label: "↑ pipeline stages (pp)", reverse: true },
          marks: [Plot.cell(cells, { x: "tp", y: "pp", fill: (cell) => (cell.value === null ? "var(--card)" : `var(--more-${shade(cell.value)})`), stroke: (cell) => (cell.value === null ? "var(--hatch)" : "none"), strokeDasharray: "2,3", rx: 3 }),
            Plot.text(cells, { x: "tp", y: "pp", text: (cell) => (cell.value === null ? "no fit" : width < 420 ? d3.format(".2~s")(cell.value) : count(cell.value)), fill: (cell) => (cell.value === null ? "var(--muted)" : shade(cell.value) > 4 ? "var(--on-strong)" : "var(--on-pale)") }),
            Plot.tip(cells, Plot.pointer({ x: "tp", y: "pp", title: (cell) => (cell.value === null ? `tp ${cell.tp}, pp ${cell.pp}: ${cell.reason ?? "no plan fits"}` : `${planWords(cell.plan)}\n${count(cell.value)} tokens/s per GPU`) }))],
          color: { type: "identity" },
        });
        if (!this.pinned) svg.addEventListener("click", (event) => { if (svg.value?.plan) this.pick(svg.value, event); });
        return svg;
      },
      caption: "Best plan of each pair of degrees",
      columns: [{ title: "tp", key: "tp", show: (cell) => String(cell.tp) }, { title: "pp", key: "pp", number: true, show: (cell) => String(cell.pp) },
        { title: "tokens/s per GPU", key: "value", number: true, show: (cell) => (cell.value === null ? "no plan fits" : count(cell.value)) },
        { title: "plan", key: "plan", raw: (cell) => planWords(cell.plan), show: (cell) => planWords(cell.plan) }],
      rows: cells,
    });
  }

  showSensitivity(parts) {
    this.sensitivity.element.hidden = !parts.length;
    const rows = [...parts].sort((a, b) => b.better_frac - a.better_frac);
    this.sensitivity.update({
      note: "Change of tokens/s with 25% more and 25% less of each resource; the plan is optimised again each time.",
      draw: (width) => plot(`Sensitivity: ${rows.map((row) => `${row.title} ${signed(row.better_frac)}`).join(", ")}.`, {
        width, height: 34 * rows.length + 46, marginLeft: Math.min(150, width * 0.36), marginBottom: 34,
        x: { tickFormat: "+.0%", label: null, grid: true, nice: true }, y: { domain: rows.map((row) => row.title), label: null },
        marks: [Plot.barX(rows, { x: "better_frac", y: "title", fill: "var(--bar)", insetTop: 4, insetBottom: 4 }), Plot.barX(rows, { x: "worse_frac", y: "title", fill: "var(--series-1)", insetTop: 4, insetBottom: 4 }),
          Plot.ruleX([0], { stroke: "var(--ink)" })],
      }),
      legend: [key("25% more", "var(--bar)"), key("25% less", "var(--series-1)")],
      caption: "Sensitivity of the best plan",
      columns: [{ title: "resource", key: "title", show: (row) => row.title }, { title: "25% more", key: "better_frac", number: true, show: (row) => percent(row.better_frac) },
        { title: "25% less", key: "worse_frac", number: true, show: (row) => percent(row.worse_frac) }],
      rows,
    });
  }
}
