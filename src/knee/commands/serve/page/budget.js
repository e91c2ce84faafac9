// The best model that a budget can train: sizes against tokens, curves of equal loss, and limits as lines that can be moved.

import { post } from "./api.js";
import { budgetMap, LIMITS } from "./budget_map.js";
import { showChoices, showGpus, showMarginal } from "./budget_tables.js";
import { Figure, key, plot } from "./charts.js";
import { el, fill, notes, uid } from "./dom.js";
import { count, percent, plain, short, usd } from "./format.js";
import { Search } from "./search.js";
import { changed } from "./timing.js";

const { Plot } = window;

export class BudgetView {
  patience = 0;

  constructor(app, { pinned = false } = {}) {
    this.app = app;
    this.pinned = pinned;
    this.asked = null;
    this.kept = null;
    this.inputs = new Map();
    this.search = new Search(() => {});
    this.tiles = el("div", { class: "tiles" });
    this.sentences = el("div", { class: "sentences" });
    this.map = new Figure({ title: "Model size against tokens", file: "knee-budget-map" });
    this.map.element.classList.add("wide", "big");
    this.sizes = new Figure({ title: "Loss by model size", file: "knee-budget-sizes" });
    this.choices = el("section", { class: "card" });
    this.marginal = el("section", { class: "card" });
    this.gpus = el("section", { class: "card" });
    this.assumptions = el("div", { class: "wide" });
    this.grid = el(
      "div",
      { class: "grid", hidden: true },
      this.map.element,
      this.sizes.element,
      this.choices,
      this.gpus,
      this.marginal,
      this.assumptions,
    );
    this.element = el(
      "div",
      { class: "view budget" },
      pinned ? null : this.bench(),
      this.search.element,
      this.tiles,
      this.sentences,
      this.grid,
    );
  }

  /** A box for every limit; empty is no limit. The GPUs of the question are the most that may be used. */
  bench() {
    const boxes = LIMITS.map((limit) => {
      const id = uid(limit.name);
      const input = el("input", {
        type: "number",
        id,
        min: limit.least,
        max: limit.most,
        step: "any",
        placeholder: "no limit",
        inputmode: "decimal",
        onchange: (event) =>
          this.app.state.set({ [limit.name]: event.target.value || null }, { startedAt: changed(event) }),
      });
      this.inputs.set(limit.name, input);
      return el("div", { class: "inline" }, el("label", { for: id }, `${limit.unit} at most`), input);
    });
    const law = uid("law");
    this.law = el(
      "select",
      {
        id: law,
        onchange: (event) =>
          this.app.state.set(
            { law: event.target.value === this.app.catalog.laws[0] ? null : event.target.value },
            { startedAt: changed(event) },
          ),
      },
      this.app.catalog.laws.map((name) => el("option", { value: name }, name)),
    );
    return el(
      "div",
      { class: "bench" },
      boxes,
      el("div", { class: "inline" }, el("label", { for: law }, "Scaling law"), this.law),
    );
  }

  async ask(values, signal) {
    const limits = this.app.state.limits(values),
      body = { kind: "budget", ...limits },
      text = JSON.stringify(body);
    for (const [name, input] of this.inputs) if (document.activeElement !== input) input.value = body[name] ?? "";
    if (this.law) this.law.value = body.law ?? this.app.catalog.laws[0];
    if (text === this.asked) return this.kept;
    await this.preview(limits, signal);
    await new Promise((resolve) => setTimeout(resolve, this.asked === null ? 0 : 350)); // while a line is dragged, nothing starts
    if (signal.aborted) throw new DOMException("a newer question", "AbortError");
    this.kept = await this.search.start(body, signal);
    this.asked = text;
    return this.kept;
  }

  /** What plain FLOP counting says is known at once; the lines of the last search move with their limits. */
  async preview(limits, signal) {
    const quick = await post("/api/views/budget", limits, { signal });
    const lines = this.kept
      ? this.lines(this.kept.limits, limits, this.kept.budget.limits)
      : this.lines(quick.limits, limits, limits);
    this.grid.hidden = false;
    if (!this.kept) for (const part of [this.sizes.element, this.choices, this.gpus, this.marginal]) part.hidden = true;
    this.showMap({
      lines,
      curves: this.kept?.equal_loss ?? quick.equal_loss,
      gpus: limits.gpus,
      law: quick.law.name,
      marks: [flopMark(quick.flop_counting)],
      runs: [],
    });
  }

  close() {
    this.search.cancel();
  }

  show({ budget, limits, equal_loss: curves, trust, command, python }) {
    const { best, flop_counting: flop } = budget;
    for (const part of [this.grid, this.sizes.element, this.choices, this.gpus, this.marginal]) part.hidden = false;
    this.showTiles(budget);
    const [first, ...others] = budget.sentences;
    fill(
      this.sentences,
      el("p", {}, first),
      el(
        "ul",
        { class: "small" },
        others.map((sentence) => el("li", {}, sentence)),
      ),
    );
    const marks = [
      {
        what: "best run",
        params: best.counted_params,
        tokens: best.tokens,
        loss: best.loss,
        colour: "var(--good)",
        symbol: "star",
        r: 9,
      },
      flopMark(flop),
      flop.really && {
        what: "what that choice really reaches",
        params: flop.really.counted_params,
        tokens: flop.really.tokens,
        loss: flop.really.loss,
        colour: "var(--bad)",
        symbol: "circle",
        r: 5,
      },
    ].filter(Boolean);
    const runs = budget.by_size.map((run) => ({
      what: `best at its size: ${run.model}`,
      params: run.counted_params,
      tokens: run.tokens,
      loss: run.loss,
    }));
    this.showMap({
      lines: this.lines(limits, budget.limits, budget.limits),
      curves,
      gpus: budget.limits.gpus,
      law: budget.law.name,
      marks,
      runs,
    });
    this.showSizes(budget);
    showChoices(this.choices, budget);
    showGpus(this.gpus, budget);
    showMarginal(this.marginal, budget);
    notes(this.assumptions, "Assumptions", [...budget.assumptions, ...(budget.law.extrapolated ?? [])]);
    return { trust, trustOf: "best run: ", command, python, says: budget.sentences[0] };
  }

  showTiles({ best, law }) {
    const loss = best.bands?.both ? `${plain(best.bands.both[0])} to ${plain(best.bands.both[1])}` : "";
    const tiles = [
      ["parameters", short(best.params), `${best.layers} layers of ${count(best.hidden)}`],
      ["tokens", short(best.tokens), `${plain(best.tokens_per_param)} per parameter`],
      ["loss", plain(best.loss, 4), `${loss}; law ${law.name}`],
      ["GPUs", count(best.gpus), best.plan_words],
      ["days", plain(best.days), `limited by ${best.binding}`],
      ["cost", usd(best.cost_usd), `${count(best.gpu_hours)} GPU-hours`],
      ["energy", `${plain(best.energy_mwh)} MWh`, `${plain(best.co2e_kg / 1e3)} t CO2e`],
      ["MFU", percent(best.mfu_frac), `${percent(best.exposed_frac)} exposed`],
    ];
    this.tiles.classList.add("eight");
    this.tiles.replaceChildren(
      ...tiles.map(([name, value, sub]) =>
        el(
          "div",
          { class: "tile" },
          el("span", { class: "tile-name plain-name" }, name),
          el("strong", {}, value),
          el("span", { class: "small" }, sub),
        ),
      ),
    );
  }

  /** A line was moved, or released. */
  moved(name, value, options) {
    if (value === null) {
      this.app.state.endGesture();
      return;
    }
    this.app.state.set({ [name]: value }, options);
  }

  /** Lines of the limits; those of an answer for other limits are moved by what changed. */
  lines(points, limits, answered) {
    return LIMITS.filter(({ name }) => limits[name] && points[name] && answered[name]).map((limit) => ({
      ...limit,
      value: Number(limits[limit.name]),
      points: points[limit.name].map(([params, tokens]) => ({
        params,
        tokens: (tokens * Number(limits[limit.name])) / Number(answered[limit.name]),
      })),
    }));
  }

  showMap({ lines, curves, gpus, law, marks, runs }) {
    const held = /** @type {HTMLElement} */ (document.activeElement)?.dataset?.limit; // handles are drawn anew, and keep the focus
    this.map.update({
      note:
        `Tokens that each size gets through within each limit, on up to ${count(gpus)} GPUs; grey curves have equal loss by ${law}. ` +
        "Drag a line by its handle, or focus the handle and use the arrow keys, to change the limit.",
      legend: [
        ...lines.map((line) => key(`${line.title}: ${line.show(line.value)}`, line.colour, "line", line.dash)),
        key("best run", "var(--good)", "dot"),
        key("choice of plain FLOP counting, and what it really reaches", "var(--bad)", "dot"),
        key("equal loss", "var(--ideal)", "line"),
      ],
      draw: (width) =>
        budgetMap(width, { lines, curves, marks, runs }, this.pinned ? null : (...args) => this.moved(...args)),
      caption: "Runs on the map",
      columns: [
        { title: "run", key: "what", show: (row) => row.what },
        { title: "parameters", key: "params", number: true, show: (row) => short(row.params) },
        { title: "tokens", key: "tokens", number: true, show: (row) => short(row.tokens) },
        { title: "loss", key: "loss", number: true, show: (row) => plain(row.loss, 4) },
      ],
      rows: [...marks, ...runs],
    });
    if (held) this.map.drawing.querySelector(`[data-limit="${held}"]`)?.focus();
  }

  showSizes({ by_size: sizes, best, law }) {
    const runs = [...sizes, best]
      .sort((a, b) => a.params - b.params)
      .filter((run, i, all) => !i || run.params !== all[i - 1].params);
    const counted = sizes.filter((run) => run.counted_loss);
    this.sizes.update({
      note: `Loss of each size within the limits (${law.loss_of}).`,
      legend: [
        key("with communication", "var(--series-0)", "line"),
        counted.length ? key("by plain FLOP counting", "var(--bad)", "line", "4,3") : null,
        key("best", "var(--good)", "dot"),
      ].filter(Boolean),
      draw: (width) =>
        plot(`Loss by model size: ${runs.map((run) => `${short(run.params)} ${plain(run.loss, 4)}`).join(", ")}.`, {
          width,
          height: 280,
          marginLeft: 52,
          marginBottom: 40,
          x: { type: "log", label: "parameters →", tickFormat: (value) => short(value, 2), ticks: 5 },
          y: { label: "↑ loss", grid: true, nice: true },
          marks: [
            Plot.line(runs, { x: "params", y: "loss", stroke: "var(--series-0)", strokeWidth: 2 }),
            Plot.dot(runs, { x: "params", y: "loss", fill: "var(--series-0)", r: 3 }),
            Plot.line(counted, {
              x: "params",
              y: "counted_loss",
              stroke: "var(--bad)",
              strokeDasharray: "4,3",
              strokeWidth: 1.8,
            }),
            Plot.dot([best], { x: "params", y: "loss", fill: "var(--good)", r: 6 }),
            Plot.tip(
              runs,
              Plot.pointer({
                x: "params",
                y: "loss",
                title: (run) =>
                  `${run.model}\nloss ${plain(run.loss, 4)}, ${short(run.tokens)} tokens\n${run.plan_words}`,
              }),
            ),
          ],
        }),
      caption: "Loss by model size",
      columns: [
        { title: "model", key: "model", show: (run) => run.model },
        { title: "parameters", key: "params", number: true, show: (run) => short(run.params) },
        { title: "tokens", key: "tokens", number: true, show: (run) => short(run.tokens) },
        { title: "loss", key: "loss", number: true, show: (run) => plain(run.loss, 4) },
        { title: "GPUs", key: "gpus", number: true, show: (run) => count(run.gpus) },
        { title: "MFU", key: "mfu_frac", number: true, show: (run) => percent(run.mfu_frac) },
        { title: "plan", key: "plan_words", show: (run) => run.plan_words },
      ],
      rows: runs,
    });
  }
}

function flopMark(flop) {
  return {
    what: "choice of plain FLOP counting",
    params: flop.params,
    tokens: flop.tokens,
    loss: flop.loss,
    colour: "var(--bad)",
    symbol: "times",
    r: 7,
  };
}
