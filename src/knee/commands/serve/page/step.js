// One training step: where its time goes, what it needs of the GPU's memory, what it draws and costs.

import { post } from "./api.js";
import { Figure, key, plot } from "./charts.js";
import { el, fill, notes, scroll, table } from "./dom.js";
import { bytes, count, percent, plain, seconds, signed, usd, watts, words } from "./format.js";
import { label } from "./metrics.js";
import { tilesOf } from "./step_tiles.js";
import { Timeline } from "./timeline.js";
import { showWhy } from "./why.js";

const { Plot } = window;
const PARTS = [
  { field: "compute_s", colour: "var(--compute)" },
  { field: "exposed_comm_s", colour: "var(--exposed)" },
  { field: "bubble_s", colour: "var(--bubble)" },
  { field: "idle_s", colour: "var(--idle)" },
];

export class StepView {
  constructor(app, { pinned = false } = {}) {
    this.app = app;
    this.pinned = pinned;
    this.tiles = el("div", { class: "tiles" });
    this.time = new Figure({ title: "Where the time of a step goes", file: "knee-step-time" });
    this.timeline = new Timeline({
      zoomed: (from, to) =>
        pinned ||
        app.state.set({ zoom: from <= 0 && to >= 1 ? null : `${from.toFixed(6)}-${to.toFixed(6)}` }, { quiet: true }),
    });
    this.lanes = new Figure({ title: "Timeline of one step", file: "knee-step-timeline" });
    this.lanes.drawing.append(this.timeline.element);
    this.memory = new Figure({ title: "Memory of the GPU that needs the most", file: "knee-step-memory" });
    this.power = el("section", { class: "card" });
    this.collectives = el("section", { class: "card wide" });
    this.assumptions = el("div", { class: "wide" });
    this.element = el(
      "div",
      { class: "view step" },
      this.tiles,
      el(
        "div",
        { class: "grid" },
        this.time.element,
        this.lanes.element,
        this.memory.element,
        this.power,
        this.collectives,
        this.assumptions,
      ),
    );
    this.time.element.classList.add("wide");
    this.lanes.element.classList.add("wide");
  }

  question(values) {
    return this.app.state.question(values);
  }

  ask(values, signal) {
    return post("/api/views/step", this.question(values), { signal });
  }

  show(answer, values, other) {
    const { measurement: m } = answer;
    this.showTiles(answer, values, other);
    this.showTime(m, answer.words);
    this.showLanes(answer, values);
    this.showMemory(answer.memory);
    this.showPower(answer);
    this.showCollectives(answer.collectives, m.step_s);
    notes(this.assumptions, "Assumptions", answer.assumptions);
    return {
      trust: answer.trust,
      point: { plan: m.plan, words: answer.words },
      command: answer.command,
      python: answer.python,
      says:
        `Step time ${seconds(m.step_s)}, ${count(m.tokens_per_s_per_gpu)} tokens per second per GPU, ` +
        `${percent(m.exposed_comm_s / m.step_s)} exposed, memory ${answer.memory.fits ? "fits" : "does not fit"}.`,
    };
  }

  showTiles(answer, values, other) {
    const before = other ? new Map(tilesOf(other).map((tile) => [tile.name, tile.raw])) : null;
    this.tiles.classList.toggle("eight", tilesOf(answer).length === 8);
    this.tiles.replaceChildren(
      ...tilesOf(answer).map((tile) => {
        const was = before?.get(tile.name),
          change = was ? tile.raw / was - 1 : null;
        const better =
          change === null || Math.abs(change) < 5e-4 ? "" : change < 0 === Boolean(tile.lower) ? "better" : "worse";
        return el(
          "button",
          {
            type: "button",
            class: `tile${tile.bad ? " bad" : ""}`,
            title: "Formula, constants and sources",
            onclick: () => showWhy(`${tile.name} is ${tile.value}`, tile.why, this.question(values)),
          },
          el("span", { class: "tile-name" }, tile.name),
          el("strong", {}, tile.value),
          change === null ? null : el("span", { class: `change ${better}` }, `${signed1(change)} from A`),
          el("span", { class: "small" }, tile.sub),
        );
      }),
    );
  }

  showTime(m, planWords) {
    const rows = PARTS.map((part) => ({
      ...part,
      name: label(part.field),
      seconds: m[part.field] ?? 0,
      frac: (m[part.field] ?? 0) / m.step_s,
    }));
    this.time.update({
      note: `${planWords}. Communication takes ${seconds(m.comm_s)}, of which ${seconds(m.overlapped_comm_s)} run beside compute.`,
      legend: rows
        .filter((row) => row.seconds > 0)
        .map((row) => key(`${row.name} ${seconds(row.seconds)} (${percent(row.frac)})`, row.colour)),
      draw: (width) =>
        plot(`Time of a step: ${rows.map((row) => `${row.name} ${percent(row.frac)}`).join(", ")}.`, {
          width,
          height: 64,
          marginLeft: 1,
          marginRight: 1,
          marginTop: 4,
          marginBottom: 24,
          x: {
            domain: [0, m.step_s],
            label: null,
            tickFormat: (value) => seconds(value),
            ticks: Math.max(2, Math.floor(width / 140)),
          },
          marks: [Plot.barX(rows, Plot.stackX({ x: "seconds", fill: (row) => row.colour, insetRight: 0.5 }))],
          color: { type: "identity" },
        }),
      caption: "Parts of a step, mean over GPUs",
      columns: [
        { title: "part", key: "name", show: (row) => row.name },
        { title: "time", key: "seconds", number: true, show: (row) => seconds(row.seconds) },
        { title: "share", key: "frac", number: true, show: (row) => percent(row.frac) },
      ],
      rows,
    });
  }

  showLanes({ lanes, lanes_note: note, end_s: end, measurement: m }, values) {
    const zoom = (values.zoom ?? "").match(/^([\d.]+)-([\d.]+)$/);
    const stages = new Set(lanes.map((lane) => lane.stage)).size;
    const kernels = d3.sum(lanes, (lane) => d3.sum(lane.intervals, (interval) => interval[4]));
    this.timeline.element.hidden = !lanes.length;
    this.timeline.update(lanes, end ?? m.step_s, zoom ? [Number(zoom[1]), Number(zoom[2])] : [0, 1]);
    const sentence = lanes.length
      ? `${count(kernels)} kernels of one GPU${stages > 1 ? ` of each of ${stages} stages` : ""}; short neighbours are drawn as one.`
      : `Not drawn: ${note}.`;
    this.lanes.note.textContent = sentence;
    fill(
      this.lanes.legend,
      lanes.length
        ? [
            key(label("compute_s"), "var(--compute)"),
            key("communication beside compute", "var(--comm)"),
            key(label("exposed_comm_s"), "var(--exposed)"),
          ]
        : [],
    );
    // the file has every stretch, the page only the sum of each lane
    this.lanes.columns = ["stage", "kind", "group", "start_s", "end_s", "name", "exposed_frac", "kernels"].map(
      (name) => ({ title: name, key: name, show: (row) => row[name] }),
    );
    this.lanes.rows = lanes.flatMap((lane) =>
      lane.intervals.map(([start_s, end_s, name, exposed_frac, many]) => ({
        stage: lane.stage + 1,
        kind: lane.kind,
        group: lane.group,
        start_s,
        end_s,
        name,
        exposed_frac,
        kernels: many,
      })),
    );
    this.lanes.fill = () => this.lanes.table.open && fill(this.lanes.values, this.laneTable(lanes));
    this.lanes.fill();
  }

  laneTable(lanes) {
    const sums = lanes.map((lane) => ({
      ...lane,
      kernels: d3.sum(lane.intervals, (one) => one[4]),
      busy: d3.sum(lane.intervals, ([a, b]) => b - a),
      exposed: d3.sum(lane.intervals, ([a, b, , frac]) => (b - a) * frac),
    }));
    return scroll(
      "Lanes of the timeline",
      table(
        "Lanes of the timeline",
        [
          { title: "stage", show: (row) => String(row.stage + 1) },
          { title: "what", show: (row) => words(row.kind) },
          { title: "group", show: (row) => (row.group ? `${row.group} ${count(row.group_size)}` : "–") },
          { title: "kernels", number: true, show: (row) => count(row.kernels) },
          { title: "time", number: true, show: (row) => seconds(row.busy) },
          { title: "exposed", number: true, show: (row) => (row.kind === "compute" ? "–" : seconds(row.exposed)) },
        ],
        sums,
      ),
    );
  }

  showMemory(memory) {
    const rows = memory.parts.map((part, i) => ({
      ...part,
      name: words(part.name),
      colour: `var(--part-${i})`,
      gib: part.bytes / 2 ** 30,
    }));
    const limit = memory.capacity_bytes / 2 ** 30,
      total = memory.total_bytes / 2 ** 30;
    const high = total * (1 + (memory.high_frac ?? 0)),
      most = Math.max(limit * 1.08, total * 1.08, Math.min(high * 1.02, limit * 1.4));
    const band = memory.low_frac === null ? null : [total * (1 + memory.low_frac), Math.min(high, most)];
    this.memory.update({
      note:
        `${bytes(memory.total_bytes)} of ${bytes(memory.capacity_bytes)}: ${memory.fits ? "fits" : "does not fit"}.` +
        (band
          ? ` Published runs: ${signed(memory.low_frac)} to ${signed(memory.high_frac)} around the prediction.`
          : ""),
      legend: rows
        .filter((row) => row.gib > 0.005 * total)
        .map((row) => key(`${row.name} ${bytes(row.bytes)}`, row.colour)),
      draw: (width) =>
        plot(
          `Memory: ${rows.map((row) => `${row.name} ${bytes(row.bytes)}`).join(", ")}; the GPU has ${bytes(memory.capacity_bytes)}.`,
          {
            width,
            height: 102,
            marginLeft: 1,
            marginRight: 12,
            marginTop: 18,
            marginBottom: 40,
            x: { labelOffset: 36, domain: [0, most], label: "GiB →", ticks: Math.max(3, Math.floor(width / 80)) },
            color: { type: "identity" },
            marks: [
              Plot.barX(rows, Plot.stackX({ x: "gib", fill: "colour", insetRight: 0.5, y: () => 0 })),
              band &&
                Plot.ruleY([0], { x1: band[0], x2: band[1], stroke: "var(--ink)", strokeWidth: 1.5, marker: "tick" }),
              Plot.ruleX([limit], { stroke: memory.fits ? "var(--ink)" : "var(--bad)", strokeWidth: 2.5 }),
              Plot.text([limit], {
                x: (value) => value,
                frameAnchor: "top",
                dy: -14,
                text: () => `limit ${plain(limit)} GiB`,
                fill: "var(--ink)",
                textAnchor: limit < most / 2 ? "start" : "end",
                dx: 2,
              }),
            ].filter(Boolean),
            y: { axis: null },
          },
        ),
      caption: "Memory per GPU",
      columns: [
        { title: "part", key: "name", show: (row) => row.name },
        { title: "memory", key: "bytes", number: true, show: (row) => bytes(row.bytes) },
        {
          title: "share of the GPU",
          number: true,
          raw: (row) => row.bytes / memory.capacity_bytes,
          show: (row) => percent(row.bytes / memory.capacity_bytes),
        },
      ],
      rows,
    });
  }

  showPower({ power, cost, measurement: m }) {
    const training = m.training,
      lines = [
        [
          label("power_w_per_gpu"),
          watts(power.power_w_per_gpu),
          power.tdp_w ? `limit ${watts(power.tdp_w)}, idle ${watts(power.idle_w)}` : "",
        ],
        [label("power_w"), power.power_w ? `${plain(power.power_w / 1e3)} kW` : "unknown", counted(m.gpus)],
        [
          label("energy_j_per_step"),
          power.energy_j_per_step ? `${plain(power.energy_j_per_step / 1e3)} kJ` : "unknown",
          power.tokens_per_j ? `${plain(power.tokens_per_j)} ${label("tokens_per_j")}` : "",
        ],
        [
          label("usd_per_h"),
          usd(cost.usd_per_h),
          cost.usd_per_gpu_h ? `${usd(cost.usd_per_gpu_h)} per GPU-hour` : "the price is unknown",
        ],
        [label("usd_per_step"), usd(cost.usd_per_step), `${usd(cost.usd_per_mtoken)} per million tokens`],
      ];
    if (training) {
      lines.push(
        [
          "whole run",
          `${plain(training.days)} days`,
          `${plain(training.low_days)} to ${plain(training.high_days)} days by the band`,
        ],
        ["cost of the run", usd(training.cost_usd), `${count(training.gpu_hours)} GPU-hours`],
        [
          "energy of the run",
          `${plain(training.energy_mwh)} MWh`,
          `PUE ${training.pue}; ${plain(training.co2e_kg / 1e3)} t CO2e (${training.grid})`,
        ],
      );
      const failures = training.with_failures;
      if (failures?.days)
        lines.push([
          "with failures",
          `${plain(failures.days)} days`,
          `${plain(failures.interruptions)} interruptions, goodput ${percent(failures.goodput_frac)}`,
        ]);
    }
    fill(
      this.power,
      el("h2", {}, "Power and cost"),
      el(
        "dl",
        { class: "facts" },
        lines.map(([name, value, note]) =>
          el(
            "div",
            {},
            el("dt", {}, name),
            el("dd", {}, el("strong", {}, value), " ", el("span", { class: "small" }, note)),
          ),
        ),
      ),
      training
        ? null
        : el("p", { class: "small" }, "Give training tokens under “Whole run” for days, dollars, MWh and failures."),
    );
  }

  showCollectives(rows, step) {
    fill(
      this.collectives,
      el("h2", {}, "Communication of a step"),
      rows.length
        ? scroll(
            "Communication of a step",
            table(
              "Per step, mean over GPUs",
              [
                { title: "collective", show: (row) => words(row.collective) },
                { title: "group", show: (row) => row.group },
                { title: "GPUs in group", number: true, show: (row) => count(row.group_size) },
                { title: "calls", number: true, show: (row) => plain(row.calls) },
                { title: "message", number: true, show: (row) => (row.message_bytes ? bytes(row.message_bytes) : "–") },
                { title: "kernel time", number: true, show: (row) => seconds(row.load_s) },
                ...(rows.some((row) => row.exposed_s !== undefined)
                  ? [{ title: "exposed", number: true, show: (row) => seconds(row.exposed_s) }]
                  : []),
                { title: "of the step", number: true, show: (row) => percent(row.load_s / step) },
              ],
              rows,
            ),
          )
        : el("p", {}, "This plan sends nothing between GPUs."),
    );
  }
}

const counted = (gpus) => `${count(gpus)} GPUs`;
const signed1 = (frac) => `${frac < 0 ? "−" : "+"}${plain(Math.abs(100 * frac), 2)}%`;
