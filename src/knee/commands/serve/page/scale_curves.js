// Curves side by side: their names, how one is added and removed, and the best plan at each count, which is searched for.

import { key } from "./charts.js";
import { el } from "./dom.js";
import { Search } from "./search.js";
import { changed } from "./timing.js";
import { badge } from "./trust.js";

const ADDED = [
  "cluster",
  "tp",
  "pp",
  "cp",
  "sharding",
  "precision",
  "profile",
  "model",
  "recompute",
  "sync_every",
  "local_batch",
];
const MOST_CURVES = 6;

/** A curve is named by what it changes. */
export function curveName(curve, all) {
  if (curve.changes?.best) return "best plan at each count";
  const differs = (name) =>
    all.some((other) => JSON.stringify(other.changes?.[name]) !== JSON.stringify(curve.changes[name]));
  const shown = Object.entries(curve.changes ?? {})
    .filter(([name]) => differs(name))
    .map(([name, value]) => {
      if (["cluster", "model", "profile"].includes(name)) return String(value);
      return name === "overrides"
        ? Object.entries(value)
            .map((pair) => pair.join(" "))
            .join(", ")
        : `${name} ${value}`;
    });
  if (shown.length) return shown.join(", ");
  return all.some((other) => other.model !== curve.model) ? `${curve.model} on ${curve.cluster}` : curve.cluster;
}

export class Curves {
  /** `learned()` is called when the search has found the best plans. */
  constructor(app, pinned, learned) {
    this.app = app;
    this.pinned = pinned;
    this.learned = learned;
    this.best = null;
    this.asked = null;
    this.chips = el("ul", { class: "chips", "aria-label": "Curves" });
    this.search = new Search(() => {});
    this.adder = pinned ? null : this.madeAdder();
  }

  /** "Add curve": the question with one field changed, or with the best plan at each count. */
  madeAdder() {
    const { state } = this.app,
      names = ADDED.filter((name) => state.controls.has(name));
    const field = el(
      "select",
      { "aria-label": "Field that the new curve changes" },
      el("option", { value: "best" }, "Best plan at each count"),
      names.map((name) => el("option", { value: name }, state.controls.get(name).label)),
    );
    field.value = names[0];
    const value = el("select", { "aria-label": "Its value in the new curve" });
    const choices = () => {
      value.hidden = field.value === "best";
      if (value.hidden) return;
      const control = state.controls.get(field.value),
        numbers = field.value === "sync_every" ? [10, 50, 100, 500] : [1, 2, 4, 8, 16, 32];
      const some = (control.choices.length ? control.choices : numbers).filter(
        (choice) => String(choice) !== state.get(field.value),
      );
      value.replaceChildren(...some.map((choice) => el("option", { value: choice }, String(choice))));
    };
    field.addEventListener("change", choices);
    choices();
    const add = (event) => {
      const patch =
        field.value === "best"
          ? { best: "true" }
          : { curves: `${state.values.curves ?? ""}|${field.value}=${value.value}` };
      state.set(patch, { startedAt: changed(event) });
    };
    this.addButton = el("button", { type: "button", onclick: add }, "Add curve");
    return el(
      "div",
      { class: "inline adder" },
      el("span", { class: "small" }, "Beside it:"),
      field,
      value,
      this.addButton,
    );
  }

  /** The search runs beside the quick curves, and is not repeated while its question stays the same. */
  async searchBest(values) {
    if (values.best !== "true") {
      this.search.cancel();
      this.asked = null;
      return;
    }
    const body = this.app.state.question(values, { plan: false, run: false });
    delete body.gpus;
    const question = { kind: "scale_best", ...body, counts: this.app.state.get("counts", values) },
      text = JSON.stringify(question);
    if (text === this.asked) return;
    this.asked = text;
    this.best = null;
    try {
      const { curves } = await this.search.start(question);
      this.best = { text, curves };
      this.learned();
    } catch (error) {
      if (error.name !== "AbortError")
        this.app.failed(
          this.app.panes.find((pane) => pane.view.curves === this),
          error,
        );
    }
  }

  /** What the search found for the question as it is. */
  found(values) {
    return values.best === "true" && this.best?.text === this.asked ? this.best.curves : [];
  }

  show(curves, values) {
    if (this.addButton) this.addButton.disabled = curves.length >= MOST_CURVES;
    this.chips.hidden = curves.length < 2;
    this.chips.replaceChildren(
      ...curves.map((curve) => {
        const last = curve.points.findLast((point) => point.usable);
        const remove = el(
          "button",
          {
            type: "button",
            class: "plain",
            "aria-label": `Remove the curve ${curve.name}`,
            onclick: (event) => this.remove(curve, values, event),
          },
          "×",
        );
        return el(
          "li",
          {},
          key(curve.name, curve.colour, "line", curve.dash),
          last ? badge(last.trust.label) : el("span", { class: "small" }, "nothing fits"),
          this.pinned ? null : remove,
        );
      }),
    );
  }

  /** The last curve that is left becomes the question itself. */
  remove(curve, values, event) {
    const { state } = this.app,
      startedAt = changed(event);
    if (curve.changes?.best) {
      state.set({ best: null }, { startedAt });
      return;
    }
    const left = (values.curves ?? "").split("|").filter((_, i) => i !== curve.i);
    state.set(left.length > 1 ? { curves: left.join("|") } : { curves: null, ...state.parse(left[0] ?? "") }, {
      startedAt,
    });
  }
}
