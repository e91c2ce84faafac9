// The kernels of one step in lanes, to zoom into by mouse, touch and keyboard.

import { el, svgEl, uid } from "./dom.js";
import { count, seconds, words } from "./format.js";

const ROW = 22,
  GAP = 10,
  AXIS = 22;
const KINDS = ["compute", "comm", "exposed"],
  COMPUTE = 0,
  COMM = 1,
  EXPOSED = 2;

/** Lanes of the answer as rows: each stage's compute, then its communication as one row, or one row for each collective. */
function rowsOf(lanes, byCollective) {
  const stages = d3.groups(lanes, (lane) => lane.stage);
  const rows = [];
  for (const [stage, own] of stages) {
    const of = stages.length > 1 ? `stage ${stage + 1}` : "";
    const span =
      (lane, kind) =>
      ([start, end, what, frac, kernels]) => ({ start, end, what, kernels, lane, kind: kind(frac) });
    const add = (name, spans, first = false) =>
      rows.push({
        name,
        title: `${of ? `${of}, ` : ""}${name}`,
        of: first ? of : "",
        first,
        spans: spans.sort((a, b) => a.start - b.start),
      });
    const compute = own.filter((lane) => lane.kind === "compute"),
      exposed = own.filter((lane) => lane.kind === "exposed");
    const comm = own.filter((lane) => !compute.includes(lane) && !exposed.includes(lane));
    const alone = exposed.flatMap((lane) => lane.intervals.map(span(lane, () => EXPOSED)));
    add(
      "compute",
      compute.flatMap((lane) => lane.intervals.map(span(lane, () => COMPUTE))),
      true,
    );
    if (!byCollective)
      add("communication", [...comm.flatMap((lane) => lane.intervals.map(span(lane, () => COMM))), ...alone]);
    else {
      for (const lane of comm)
        add(
          `${words(lane.kind)} ${lane.group}`,
          lane.intervals.map(span(lane, (frac) => (frac > 0.5 ? EXPOSED : COMM))),
        );
      if (alone.length) add("exposed", alone);
    }
  }
  return rows;
}

export class Timeline {
  /**
   * `zoomed(from, to)` is told of every new window, as shares of the step, so that the address can hold it.
   * @param {{zoomed?: (from: number, to: number) => void}} options
   */
  constructor({ zoomed = () => {} } = {}) {
    this.zoomed = zoomed;
    this.from = 0;
    this.to = 1;
    this.chosen = null;
    this.byCollective = null;
    this.lanes = [];
    this.total = 1;
    this.rows = [];
    this.svg = svgEl("svg", { class: "lanes", role: "img", "aria-label": "Timeline" });
    const help = uid("timeline-help");
    this.plot = el(
      "div",
      {
        class: "timeline-plot",
        tabindex: 0,
        role: "group",
        "aria-label": "Timeline: zoom and move by keys",
        "aria-describedby": help,
      },
      this.svg,
    );
    this.said = el("output", { class: "timeline-said" });
    const button = (label, act, name) =>
      el("button", { type: "button", onclick: act, "aria-label": name ?? label }, label);
    this.detail = el(
      "button",
      {
        type: "button",
        "aria-pressed": "false",
        onclick: () => {
          this.byCollective = !this.shownByCollective();
          this.arrange();
          this.draw();
        },
      },
      "Each collective",
    );
    this.tools = el(
      "div",
      { class: "tools timeline-tools" },
      button("+", () => this.zoom(0.5), "Zoom in"),
      button("−", () => this.zoom(2), "Zoom out"),
      button("◀", () => this.pan(-0.3), "Earlier"),
      button("▶", () => this.pan(0.3), "Later"),
      button("Whole step", () => this.view(0, 1)),
      button("Next exposed", () => this.turn(1), "Next longest exposed communication"),
      this.detail,
    );
    this.help = el(
      "p",
      { class: "small help", id: help },
      "Drag to zoom into a part. Keys: + and − zoom, arrows move, n goes to the next longest exposed part, 0 shows the whole step.",
    );
    this.element = el("div", { class: "timeline" }, this.tools, this.plot, this.said, this.help);
    this.listen();
    new ResizeObserver(() => requestAnimationFrame(() => this.resized())).observe(this.plot);
  }

  shownByCollective() {
    return this.byCollective ?? new Set(this.lanes.map((lane) => lane.stage)).size === 1;
  }

  /** New lanes; the window stays where it is, as a share of the step. */
  update(lanes, total, [from, to] = [this.from, this.to]) {
    this.lanes = lanes;
    this.total = total;
    this.from = from;
    this.to = to;
    this.chosen = null;
    this.said.textContent = "";
    this.arrange();
    this.draw();
  }

  resized() {
    if (this.plot.clientWidth === this.width) return;
    this.width = this.plot.clientWidth;
    this.draw();
  }

  arrange() {
    this.rows = rowsOf(this.lanes, this.shownByCollective());
    this.detail.setAttribute("aria-pressed", String(this.shownByCollective()));
    const exposed = this.rows.some((row) => row.spans.some((span) => span.kind === EXPOSED));
    this.svg.setAttribute(
      "aria-label",
      `Timeline of a step of ${seconds(this.total)}: ${this.rows.map((row) => row.title).join("; ")}. ` +
        (exposed ? "Communication without compute is marked." : "No communication runs without compute."),
    );
  }

  draw() {
    this.width ||= this.plot.clientWidth;
    if (!this.width || !this.rows.length) {
      this.svg.replaceChildren();
      return;
    }
    const narrow = this.width < 560,
      left = narrow ? 0 : 30 + 6.4 * d3.max(this.rows, (row) => row.name.length),
      labelHeight = narrow ? 16 : 0;
    let y = AXIS;
    for (const row of this.rows) {
      y += (row.first && y > AXIS ? GAP : 2) + labelHeight;
      row.y = y;
      y += ROW;
    }
    const height = y + 4,
      inner = this.width - left;
    this.left = left;
    this.inner = inner;
    const x = (this.x = (share) => left + ((share - this.from) / (this.to - this.from)) * inner);
    const paths = KINDS.map(() => []);
    for (const row of this.rows) {
      for (const span of row.spans) {
        const start = span.start / this.total,
          end = span.end / this.total;
        if (end < this.from || start > this.to) continue;
        const a = Math.max(left, x(start)),
          b = Math.min(left + inner, x(end));
        paths[span.kind].push(`M${a.toFixed(1)} ${row.y}h${Math.max(b - a, 0.4).toFixed(1)}v${ROW}H${a.toFixed(1)}z`);
      }
    }
    this.svg.replaceChildren(
      ...this.rows.map((row) => svgEl("rect", { class: "lane", x: left, y: row.y, width: inner, height: ROW })),
      ...KINDS.map((kind, i) => svgEl("path", { class: `span ${kind}`, d: paths[i].join("") })),
      ...this.axis(x, height),
      ...this.rows.flatMap((row) => this.labels(row, narrow)),
      (this.marked = this.mark(x)),
    );
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.svg.setAttribute("width", this.width);
    this.svg.setAttribute("height", height);
  }

  axis(x, height) {
    const scale = d3.scaleLinear([this.from * this.total, this.to * this.total], [this.left, this.left + this.inner]);
    const ticks = scale.ticks(Math.max(2, Math.floor(this.inner / 110)));
    const short = this.total * (this.to - this.from) < 1e-3,
      text = (tick) => `${d3.format(",~r")(Number((tick * (short ? 1e6 : 1e3)).toPrecision(6)))} ${short ? "µs" : "ms"}`;
    return ticks.flatMap((tick, i) => {
      const at = scale(tick),
        last = at > this.left + this.inner - 50,
        crowded = last && i > 0 && at - scale(ticks[i - 1]) < 120;
      return crowded
        ? [svgEl("line", { class: "grid", x1: at, x2: at, y1: AXIS - 4, y2: height })]
        : [
            svgEl("line", { class: "grid", x1: at, x2: at, y1: AXIS - 4, y2: height }),
            svgEl(
              "text",
              { class: "tick", x: last ? at - 3 : at + 3, y: 12, "text-anchor": last ? "end" : "start" },
              text(tick),
            ),
          ];
    });
  }

  labels(row, narrow) {
    if (narrow) return [svgEl("text", { class: "row-label", x: 0, y: row.y - 4 }, row.title)];
    const name = svgEl(
      "text",
      { class: "row-label", x: this.left - 8, y: row.y + ROW / 2 + 4, "text-anchor": "end" },
      row.name,
    );
    return row.of
      ? [name, svgEl("text", { class: "row-stage", x: 0, y: row.y + ROW / 2 + 4 }, row.of.replace("stage ", ""))]
      : [name];
  }

  mark(x) {
    if (!this.chosen) return svgEl("g");
    const { row, span } = this.chosen;
    const found = this.rows.find((one) => one.title === row.title);
    if (!found) return svgEl("g");
    const a = Math.max(this.left, x(span.start / this.total)),
      b = Math.min(this.left + this.inner, x(span.end / this.total));
    return b < a
      ? svgEl("g")
      : svgEl("rect", { class: "chosen", x: a - 1, y: found.y - 2, width: Math.max(b - a, 1) + 2, height: ROW + 4 });
  }

  view(from, to, quiet = false) {
    const wide = Math.min(1, Math.max(1e-6, to - from));
    this.from = Math.min(Math.max(0, (from + to) / 2 - wide / 2), 1 - wide);
    this.to = this.from + wide;
    this.draw();
    if (!quiet) this.zoomed(this.from, this.to);
  }

  zoom(by, around = (this.from + this.to) / 2) {
    this.view(around - (around - this.from) * by, around + (this.to - around) * by);
  }

  pan(by) {
    const moved = by * (this.to - this.from);
    this.view(this.from + moved, this.to + moved);
  }

  choose(row, span, centre = false) {
    this.chosen = { row, span };
    const many = span.kernels > 1 ? ` (${count(span.kernels)} kernels)` : "",
      group = span.lane.group ? ` of ${count(span.lane.group_size)} GPUs` : "";
    this.said.textContent =
      `${row.title}: ${words(span.what)}${many}${group}, ${seconds(span.end - span.start)} at ${seconds(span.start)}` +
      (span.kind === EXPOSED && row.name !== "exposed" ? ", exposed: no compute runs beside it" : "");
    const [start, long] = [span.start / this.total, (span.end - span.start) / this.total];
    if (centre) this.view(start - 2 * long, start + 3 * long);
    else {
      const before = this.marked;
      this.marked = this.mark(this.x);
      before.replaceWith(this.marked);
    }
  }

  turn(by) {
    const all = this.rows
      .flatMap((row) => row.spans.filter((span) => span.kind === EXPOSED).map((span) => ({ row, span })))
      .sort((a, b) => b.span.end - b.span.start - (a.span.end - a.span.start) || a.span.start - b.span.start);
    if (!all.length) {
      this.said.textContent = "No communication is exposed.";
      return;
    }
    const at = all.findIndex(
      ({ span }) => span.start === this.chosen?.span.start && span.lane === this.chosen?.span.lane,
    );
    const { row, span } = all[(at + by + all.length) % all.length];
    this.choose(row, span, true);
  }

  nearest(event) {
    const box = this.svg.getBoundingClientRect(),
      at = this.timeAt(event),
      near = (4 / this.inner) * (this.to - this.from);
    const row = this.rows.find((one) => event.clientY - box.top >= one.y && event.clientY - box.top <= one.y + ROW);
    let found = null,
      least = near;
    for (const span of row?.spans ?? []) {
      const off = Math.max(span.start / this.total - at, at - span.end / this.total, 0);
      if (off < least) [found, least] = [span, off];
    }
    return found && { row, span: found };
  }

  timeAt(event) {
    const box = this.svg.getBoundingClientRect();
    return this.from + ((event.clientX - box.left - this.left) / this.inner) * (this.to - this.from);
  }

  listen() {
    const keys = {
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      ArrowLeft: () => this.pan(-0.3),
      ArrowRight: () => this.pan(0.3),
      0: () => this.view(0, 1),
      Home: () => this.view(0, 1),
      n: () => this.turn(1),
      p: () => this.turn(-1),
    };
    this.plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
    this.plot.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // a plain wheel scrolls the page
        event.preventDefault();
        this.zoom(event.deltaY < 0 ? 0.8 : 1.25, this.timeAt(event));
      },
      { passive: false },
    );
    const box = el("div", { class: "timeline-box", hidden: true });
    this.plot.append(box);
    let held = null;
    this.plot.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      held = {
        at: this.timeAt(event),
        x: event.clientX,
        touch: event.pointerType === "touch",
        from: this.from,
        to: this.to,
      };
      this.plot.setPointerCapture(event.pointerId);
    });
    this.plot.addEventListener("pointermove", (event) => {
      if (!held) {
        const hit = this.nearest(event);
        if (hit && hit.span !== this.chosen?.span) this.choose(hit.row, hit.span);
        return;
      }
      if (held.touch) {
        const moved = ((held.x - event.clientX) / this.inner) * (held.to - held.from);
        this.view(held.from + moved, held.to + moved, true);
        return;
      }
      const place = this.plot.getBoundingClientRect(),
        [a, b] = [held.x, event.clientX].map((at) => at - place.left).sort((p, q) => p - q);
      box.hidden = b - a < 4;
      box.style.setProperty("left", `${a}px`);
      box.style.setProperty("width", `${b - a}px`);
    });
    this.plot.addEventListener("pointerup", (event) => {
      if (!held) return;
      const moved = Math.abs(event.clientX - held.x),
        [a, b] = [held.at, this.timeAt(event)].sort((p, q) => p - q);
      if (moved >= 4 && !held.touch) this.view(a, b);
      else if (held.touch && moved >= 4) this.zoomed(this.from, this.to);
      else {
        const hit = this.nearest(event);
        if (hit) this.choose(hit.row, hit.span);
      }
      held = null;
      box.hidden = true;
    });
    this.plot.addEventListener("pointercancel", () => {
      held = null;
      box.hidden = true;
    });
  }
}
