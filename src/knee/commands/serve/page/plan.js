// The best parallel plan: the search while it runs, the ranking, the front, and what tensor and pipeline parallelism do.

import { Figure } from "./charts.js";
import { el, scroll, table, uid } from "./dom.js";
import { bytes, count, seconds } from "./format.js";
import { label } from "./metrics.js";
import { COLUMNS, showFront, showHeat, showSensitivity } from "./plan_charts.js";
import { Search } from "./search.js";
import { changed } from "./timing.js";

const OBJECTIVES = ["tokens_per_s", "tokens_per_j", "usd_per_mtoken"];

export class PlanView {
  patience = 0; // a search for an older question is of no use

  constructor(app, { pinned = false } = {}) {
    this.app = app;
    this.pinned = pinned;
    this.asked = null;
    this.kept = null;
    this.sort = { key: "rank", down: false };
    this.search = new Search((name, data) => {
      if (name === "best") this.showBest(data.row, "Best so far");
    });
    this.best = el("div", { class: "best", hidden: true });
    this.counts = el("p", { class: "small" });
    this.front = new Figure({ title: "Speed against memory", file: "knee-plan-front" });
    this.heat = new Figure({ title: "Tensor against pipeline parallelism", file: "knee-plan-heat" });
    this.sensitivity = new Figure({ title: "Sensitivity of the best plan", file: "knee-plan-sensitivity" });
    this.sensitivity.element.classList.add("wide");
    this.ranking = el("section", { class: "card wide ranking" });
    this.grid = el(
      "div",
      { class: "grid", hidden: true },
      this.ranking,
      this.front.element,
      this.heat.element,
      this.sensitivity.element,
    );
    this.element = el(
      "div",
      { class: "view plan" },
      pinned ? null : this.bench(),
      this.search.element,
      this.best,
      this.counts,
      this.grid,
    );
  }

  bench() {
    const objective = uid("objective"),
      only = uid("only"),
      { state } = this.app;
    this.objective = el(
      "select",
      {
        id: objective,
        onchange: (event) => state.set({ objective: event.target.value }, { startedAt: changed(event) }),
      },
      OBJECTIVES.map((value) => el("option", { value }, label(value))),
    );
    this.only = el("input", {
      type: "text",
      id: only,
      placeholder: "pp == 1 and tp <= 8",
      title: "Only plans that meet this condition",
      onchange: (event) => state.set({ only: event.target.value || null }, { startedAt: changed(event) }),
    });
    this.again = el(
      "button",
      {
        type: "button",
        class: "primary",
        onclick: (event) => {
          this.asked = null;
          this.app.ask(
            this.app.panes.find((pane) => pane.view === this),
            changed(event),
          );
        },
      },
      "Search again",
    );
    return el(
      "div",
      { class: "bench" },
      el("div", { class: "inline" }, el("label", { for: objective }, "Best in"), this.objective),
      el("div", { class: "inline" }, el("label", { for: only }, "Only plans with"), this.only),
      this.again,
    );
  }

  question(values) {
    const { state } = this.app,
      body = state.question(values, { plan: false, run: false });
    if (values.objective) body.objective = values.objective;
    if (values.only) body.only = values.only;
    return { kind: "plan", ...body };
  }

  /** Picking a row changes the plan of the question, which the search does not depend on, so it is not repeated. */
  async ask(values, signal) {
    const body = this.question(values),
      text = JSON.stringify(body);
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
    const pick = this.pinned ? null : (row, event) => this.pick(row, event);
    this.grid.hidden = false;
    const rows = answer.ranking;
    this.showBest(answer.recommended ?? rows[0], "Recommended", answer.why);
    this.counts.textContent = `${count(answer.counts?.plans)} valid plans, ${count(answer.counts?.simulated)} simulated; the others are provably slower or do not fit.`;
    this.showRanking(rows, values);
    showFront(this.front, rows, answer.front ?? [], this.current(values), pick);
    showHeat(this.heat, answer.heat ?? [], pick);
    showSensitivity(this.sensitivity, answer.sensitivity ?? []);
    return {
      trust: answer.trust,
      trustOf: "recommended plan: ",
      point: undefined,
      command: answer.command,
      python: answer.python,
      says: `The search ended. Recommended: ${(answer.recommended ?? rows[0]).words}, ${count((answer.recommended ?? rows[0]).tokens_per_s_per_gpu)} tokens per second per GPU.`,
    };
  }

  showBest(row, title, why = "") {
    this.best.hidden = !row;
    if (!row) return;
    this.best.replaceChildren(
      el("p", { class: "small" }, title),
      el("p", {}, el("strong", {}, row.words)),
      el(
        "p",
        {},
        `${count(row.tokens_per_s_per_gpu)} tokens/s per GPU, step ${seconds(row.step_s)}, memory ${bytes(row.memory_bytes)}. `,
        why ? `${why.charAt(0).toUpperCase()}${why.slice(1)}.` : "",
      ),
      this.pinned
        ? ""
        : el("button", { type: "button", onclick: (event) => this.pick(row, event) }, "Use this plan in all views"),
    );
  }

  /** The plan of a row as a change of the state: what the server lists as its options, everything else at its default. */
  patch(row) {
    const controls = [...this.app.state.controls.values()].filter(({ group }) => group === "plan");
    const text = (value) => (value === undefined ? null : Array.isArray(value) ? value.join(",") : String(value));
    return Object.fromEntries(controls.map(({ name }) => [name, text(row.options[name])]));
  }

  /** The plan of a row becomes that of the question. The search is not repeated, although it may read some of it. */
  pick(row, event) {
    const { state } = this.app,
      patch = this.patch(row),
      text = (values) => JSON.stringify(this.question(values));
    if (text(state.values) === this.asked) this.asked = text(state.changed(patch));
    state.set(patch, { startedAt: changed(event) });
  }

  /** Whether the question has the plan of a row. */
  current(values) {
    return (row) => Object.entries(this.patch(row)).every(([name, value]) => (values[name] ?? null) === value);
  }

  showRanking(rows, values) {
    const { key: by, down } = this.sort,
      is = this.current(values);
    const sorted = [...rows].sort((a, b) => {
      const [x, y] = [a, b].map((row) => (by === "plan" ? row.words : (row[by] ?? -Infinity)));
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    });
    const columns = COLUMNS.filter((column) =>
      rows.some((row) => (column.raw ? column.raw(row) : row[column.key]) !== undefined),
    ).map((column) => ({
      ...column,
      sorted: column.key === by ? (down ? "descending" : "ascending") : "none",
      show:
        column.key === "plan" && !this.pinned
          ? (row) =>
              el(
                "button",
                {
                  type: "button",
                  class: "plain",
                  "aria-pressed": undefined,
                  onclick: (event) => this.pick(row, event),
                },
                row.words,
              )
          : column.show,
    }));
    const order = (column) => {
      this.sort = { key: column.key, down: column.key === by ? !down : Boolean(column.down) };
      this.showRanking(rows, values);
      this.ranking.querySelector(`button[data-key="${column.key}"]`)?.focus();
    };
    const arrow = (column) => (column.key === by ? (down ? " ↓" : " ↑") : "");
    this.ranking.replaceChildren(
      el("h2", {}, "Ranking"),
      scroll(
        "Ranking",
        table(
          this.pinned
            ? "The best plans"
            : "The best plans; choosing one makes it the plan of all views. A heading sorts by its column. Robust: share of draws of uncertain values in which a plan is within 2% of the best.",
          columns,
          sorted,
          {
            head: (column) =>
              el(
                "button",
                { type: "button", class: "plain", "data-key": column.key, onclick: () => order(column) },
                column.title + arrow(column),
              ),
            rowAttributes: (row) => (is(row) ? { class: "chosen", "aria-current": "true" } : {}),
          },
        ),
      ),
    );
  }
}
