// The question: one native input for every control of /api/catalog, with its unit, range and default.

import { el } from "./dom.js";
import { count, plain, short } from "./format.js";
import { changed } from "./timing.js";

/** Fields of a plan that are always in sight; the others are behind "More of the plan". */
const FIRST = ["tp", "pp", "cp", "ep", "sharding", "micro_batch", "schedule", "recompute", "precision"];
const LARGEST_SLIDER = {
  gpus: 2 ** 17,
  global_batch: 2 ** 17,
  tokens: 2 ** 46,
  micro_batch: 64,
  dp_shard: 2 ** 17,
  dp_replicate: 2 ** 17,
};

let gestures = 0;

/** One control: its element, and how it shows a state. */
class Control {
  constructor(spec, state, catalog) {
    this.spec = spec;
    this.state = state;
    this.catalog = catalog;
    this.id = `control-${spec.name}`;
    this.inputs = this.made();
    const [first] = this.inputs;
    first.id = this.id;
    this.wrong = el("p", { class: "wrong", id: `${this.id}-wrong`, hidden: true });
    for (const input of this.inputs) this.listen(input);
    this.unit = el("span", { class: "unit" }, this.range());
    const fallback = this.state.defaults[spec.name];
    const reset = fallback === undefined ? "auto" : `reset to ${Number(fallback) ? count(Number(fallback)) : fallback}`;
    this.reset = el(
      "button",
      {
        type: "button",
        class: "plain",
        hidden: true,
        "aria-label": `${spec.label}: ${fallback === undefined ? "let knee choose" : reset}`,
        onclick: (event) => state.set({ [spec.name]: null }, { startedAt: changed(event) }),
      },
      reset,
    );
    const row = el(
      "div",
      { class: "label-row" },
      el("label", { for: this.id, title: spec.help || undefined }, spec.label),
      this.unit,
      this.reset,
    );
    const kind = { switch: "switch", words: "wide-box" }[spec.kind] ?? "";
    this.element = el("div", { class: `control ${kind}` }, row, this.inputs, this.wrong);
  }

  /** What a control takes: "1 to 1,000,000". */
  range() {
    const { unit, kind, least, most } = this.spec;
    if (kind === "choice" || kind === "switch" || kind === "words" || least === null || most === null) return "";
    const end = (value) =>
      value < 1 && value > 0 ? `1/${plain(1 / value)}` : value >= 1e9 ? short(value) : count(value);
    return `${end(least)} to ${end(most)}${unit && !this.spec.label.toLowerCase().includes(unit.toLowerCase()) ? ` ${unit}` : ""}`;
  }

  made() {
    const { name, kind, choices, least, most, step, label, help } = this.spec;
    if (kind === "choice") {
      return [
        el(
          "select",
          { name },
          this.spec.group === "plan" && el("option", { value: "" }, "auto"),
          choices.map((choice) => el("option", { value: choice }, this.optionWords(choice))),
        ),
      ];
    }
    if (kind === "switch") return [el("input", { type: "checkbox", name })];
    if (kind === "words") {
      return [
        el("input", {
          type: "text",
          name,
          placeholder: (this.spec.default ?? []).join("-") || choices.slice(0, 2).join("+"),
          title: help,
        }),
      ];
    }
    const box = el("input", {
      type: "number",
      name,
      min: least,
      max: most,
      step: kind === "integer" ? 1 : "any",
      inputmode: "decimal",
    });
    if (kind === "integer") return [box];
    if (name === "seq_len" || kind === "logarithmic") {
      const low = Math.ceil(Math.log2(least)),
        high = Math.floor(Math.log2(Math.min(most, LARGEST_SLIDER[name] ?? most)));
      this.slider = el("input", {
        type: "range",
        min: low,
        max: high,
        step: name === "tokens" ? 0.25 : 1,
        "aria-label": `${label}, by doublings`,
      });
    } else {
      this.slider = el("input", {
        type: "range",
        min: least,
        max: Math.min(most, 10),
        step,
        "aria-label": `${label}, slider`,
      });
    }
    return [box, this.slider];
  }

  optionWords(choice) {
    const { name } = this.spec;
    if (name === "model") {
      const model = this.catalog.models.find((one) => one.name === choice);
      return model ? `${choice} (${short(model.params)})` : choice;
    }
    if (name === "cluster") {
      const cluster = this.catalog.clusters.find((one) => one.name === choice);
      return cluster ? `${choice} (${cluster.node_gpus} × ${cluster.gpu} per node)` : choice;
    }
    return choice;
  }

  /** What follows within a second on the same input is one gesture: a drag, a number that is typed, a key held down. */
  listen(input) {
    const { name } = this.spec;
    let gesture = null,
      last = -Infinity;
    input.addEventListener("input", (event) => {
      const startedAt = changed(event);
      if (startedAt - last > 1000) gesture = `${name}-${gestures++}`;
      last = startedAt;
      this.state.set({ [name]: this.valueOf(input) }, { startedAt, gesture });
    });
  }

  valueOf(input) {
    const { kind, name, least, most } = this.spec;
    if (input.type === "checkbox") return input.checked === this.spec.default ? null : String(input.checked);
    if (input !== this.slider) return input.value === "" ? null : input.value;
    const value = Number(input.value);
    if (kind !== "logarithmic") return String(value);
    const number = 2 ** value;
    const round = name === "tokens" ? Number(number.toPrecision(3)) : number;
    return String(Math.min(most, Math.max(least, round)));
  }

  /** The state as the control shows it; `chosen` is what knee chose where nothing is set. */
  show(values, chosen) {
    const { name, kind, group } = this.spec;
    const drawn = `${values[name]} ${chosen?.[name]} ${values.global_batch}`;
    if (drawn === this.drawn && kind !== "words") return; // most controls stay as they are
    this.drawn = drawn;
    const isSet = this.state.isSet(name, values) && values[name] !== this.state.defaults[name];
    const text = this.state.get(name, values);
    const auto = chosen?.[name];
    const [first] = this.inputs;
    this.element.classList.toggle("changed", isSet);
    this.reset.hidden = !isSet;
    this.unit.hidden = isSet;
    if (kind === "choice") {
      if (group === "plan") first.options[0].textContent = auto ? `auto: ${auto}` : "auto";
      if (document.activeElement !== first || first.value !== text) first.value = text;
      return;
    }
    if (kind === "switch") {
      first.checked = text === "" ? Boolean(auto ?? this.spec.default) : text === "true";
      return;
    }
    if (kind === "words") {
      if (document.activeElement !== first) first.value = text;
      return;
    }
    const number = text === "" ? auto : Number(text);
    if (document.activeElement !== first) first.value = text;
    first.placeholder = text === "" ? (auto === undefined || auto === null ? "auto" : `${plain(auto)}`) : "";
    if (!this.slider) return;
    const place =
      number === undefined || number === null ? this.slider.min : kind === "logarithmic" ? Math.log2(number) : number;
    if (document.activeElement !== this.slider || Number(this.slider.value) !== place) this.slider.value = place;
    this.slider.setAttribute(
      "aria-valuetext",
      `${number === undefined || number === null ? "auto" : count2(number)} ${this.spec.unit}${text === "" ? ", chosen by knee" : ""}`,
    );
  }

  problem(words) {
    this.wrong.hidden = !words;
    this.wrong.textContent = words ?? "";
    for (const input of this.inputs) {
      if (words) {
        input.setAttribute("aria-invalid", "true");
        input.setAttribute("aria-describedby", this.wrong.id);
      } else {
        input.removeAttribute("aria-invalid");
        input.removeAttribute("aria-describedby");
      }
    }
  }
}

const count2 = (number) => (Number.isInteger(number) && number < 1e7 ? count(number) : short(number));

/** The whole form. */
export class Question {
  constructor(form, state, catalog) {
    this.form = form;
    this.state = state;
    this.catalog = catalog;
    this.chosen = null;
    this.controls = new Map(catalog.controls.map((spec) => [spec.name, new Control(spec, state, catalog)]));
    const of = (...names) => names.map((name) => this.controls.get(name)?.element).filter(Boolean);
    const plan = catalog.controls.filter((spec) => spec.group === "plan").map((spec) => spec.name);
    const rest = plan.filter((name) => !FIRST.includes(name));
    this.batch = this.batchSwitch();
    this.overrides = this.overrideBox();
    this.note = el("p", { class: "small", hidden: true });
    this.more = el("details", { class: "more" }, el("summary", {}, "More of the plan"), el("div", {}, of(...rest)));
    this.run = el(
      "details",
      { class: "more" },
      el("summary", {}, "Whole run"),
      el("div", {}, of("tokens", "grid", "pue")),
    );
    form.append(
      el(
        "fieldset",
        {},
        el("legend", {}, "Job"),
        this.note,
        of("model", "cluster", "gpus"),
        this.batch,
        of("local_batch", "global_batch", "seq_len", "profile"),
      ),
      el(
        "fieldset",
        {},
        el("legend", {}, "Plan"),
        el("p", { class: "small", id: "plan-words" }),
        of(...FIRST.filter((name) => plan.includes(name))),
      ),
      el(
        "div",
        {},
        this.more,
        this.run,
        el("details", { class: "more" }, el("summary", {}, "Change a value of the catalogue"), this.overrides),
      ),
    );
    // a budget chooses the model, the batch and the plan
    for (const part of [
      ...of("model", "local_batch", "global_batch"),
      this.batch,
      this.more,
      this.run,
      form.querySelectorAll("fieldset")[1],
    ])
      part.classList.add("not-in-budget");
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  batchSwitch() {
    const choose = (name) => (event) => {
      const { local_batch: perGpu, global_batch: perStep } = this.batches();
      this.state.set(
        name === "local_batch"
          ? { local_batch: perGpu, global_batch: null }
          : { global_batch: perStep, local_batch: null },
        { startedAt: changed(event) },
      );
    };
    this.perGpu = el("input", { type: "radio", name: "batch-kind", onchange: choose("local_batch") });
    this.perStep = el("input", { type: "radio", name: "batch-kind", onchange: choose("global_batch") });
    return el(
      "div",
      { class: "control" },
      el("span", { class: "label", id: "batch-label" }, el("span", {}, "Batch")),
      el(
        "div",
        { class: "segments", role: "radiogroup", "aria-labelledby": "batch-label" },
        el("label", {}, this.perGpu, el("span", {}, "per GPU (weak)")),
        el("label", {}, this.perStep, el("span", {}, "per step (strong)")),
      ),
    );
  }

  /** The same batch in both ways, so that switching keeps the step as it is. */
  batches() {
    const gpus = Number(this.state.get("gpus")),
      perGpu = this.state.get("local_batch"),
      perStep = this.state.get("global_batch");
    return {
      local_batch: perGpu || String(Number(perStep) / gpus),
      global_batch: perStep || String(Math.max(1, Math.round(Number(perGpu) * gpus))),
    };
  }

  /** Values of the catalogue that are changed: one box, as `name=value; name=value`. */
  overrideBox() {
    const commit = (event) => {
      const pairs = event.target.value
        .split(";")
        .map((pair) => pair.split("="))
        .filter(([key, ...value]) => key.trim() && value.length)
        .map(([key, ...value]) => [`set.${key.trim()}`, value.join("=").trim()]);
      const before = Object.keys(this.state.values)
        .filter((name) => name.startsWith("set."))
        .map((name) => [name, null]);
      this.state.set(Object.fromEntries([...before, ...pairs]), { startedAt: changed(event) });
    };
    const input = el("input", {
      type: "text",
      id: "control-overrides",
      name: "overrides",
      placeholder: "fabric.nic_bytes_per_s=200 Gbit/s",
      onchange: commit,
    });
    this.overrideWrong = el("p", { class: "wrong", id: "control-overrides-wrong", hidden: true });
    return el(
      "div",
      { class: "control wide-box" },
      el("label", { for: "control-overrides" }, "name=value; name=value"),
      input,
      this.overrideWrong,
    );
  }

  /** Shows a state; `point` has the plan of the last answer and its words. */
  show(point = this.chosen) {
    this.chosen = point;
    const plan = point?.plan ?? null;
    const { values } = this.state;
    for (const control of this.controls.values()) control.show(values, plan);
    const strong = this.state.isSet("global_batch"),
      view = this.state.get("view");
    this.form.dataset.view = view;
    this.note.textContent =
      {
        budget: "A budget chooses the model, the batch and the plan itself.",
        plan: "The search chooses the plan; the fields below are those of the other views.",
      }[view] ?? "";
    this.note.hidden = !this.note.textContent;
    [this.perGpu.checked, this.perStep.checked] = [!strong, strong];
    this.controls.get("local_batch").element.hidden = strong;
    this.controls.get("global_batch").element.hidden = !strong;
    const experts = this.catalog.models.find((one) => one.name === this.state.get("model"))?.experts ?? true;
    for (const { name, needs } of this.state.controls.values())
      if (needs === "ep" || ["ep", "etp"].includes(name))
        this.controls.get(name).element.hidden = !experts && !this.state.isSet(name);
    const staged = Number(this.state.get("pp") || plan?.pp || 1) > 1;
    for (const { name, needs } of this.state.controls.values())
      if (needs === "pp") this.controls.get(name).element.hidden = !staged && !this.state.isSet(name);
    const box = this.overrides.querySelector("input");
    const set = Object.entries(values)
      .filter(([name]) => name.startsWith("set."))
      .map(([name, value]) => `${name.slice(4)}=${value}`);
    if (document.activeElement !== box) box.value = set.join("; ");
    document.getElementById("plan-words").textContent = point?.words ?? "";
    document.getElementById("question-words").textContent = this.sentence();
  }

  sentence() {
    const batch = this.state.isSet("global_batch")
      ? `${count(Number(this.state.get("global_batch")))} sequences per step`
      : `${plain(Number(this.state.get("local_batch")))} sequences per GPU`;
    return `${this.state.get("model")} on ${count(Number(this.state.get("gpus")))} GPUs of ${this.state.get("cluster")}, ${batch}`;
  }

  /** Marks the control that an error is about, and opens what hides it. */
  problem(error) {
    for (const control of this.controls.values()) control.problem(null);
    this.overrideWrong.hidden = true;
    if (!error?.field) return;
    const control = this.controls.get(error.field);
    if (control) {
      control.problem(error.message);
      const fold = control.element.closest("details.more");
      if (fold) fold.open = true;
    } else if (error.field.startsWith("overrides") || error.field === "set") {
      this.overrideWrong.hidden = false;
      this.overrideWrong.textContent = error.message;
    }
  }
}
