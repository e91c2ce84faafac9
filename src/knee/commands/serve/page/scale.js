// What more GPUs bring: curves over GPU counts with their bands, their knees and published runs.

import { post } from "./api.js";
import { Figure, SERIES, key } from "./charts.js";
import { el, fill, notes, scroll, table, uid } from "./dom.js";
import { count, percent, plain, seconds } from "./format.js";
import { METRICS, scaleChart } from "./scale_chart.js";
import { Curves, curveName } from "./scale_curves.js";
import { changed } from "./timing.js";

const COUNTS = ["1..64", "8..512", "8..2048", "64..16384", "256..65536"];

export class ScaleView {
  constructor(app, { pinned = false } = {}) {
    this.app = app;
    this.pinned = pinned;
    this.asked = null;
    this.kept = null;
    this.metric = el(
      "div",
      { class: "segments", role: "radiogroup", "aria-label": "What the chart shows" },
      METRICS.map(({ name, title }) =>
        el(
          "label",
          {},
          el("input", {
            type: "radio",
            name: uid("metric-group").replace(/-\d+$/, pinned ? "-a" : "-b"),
            value: name,
            onchange: (event) => app.state.set({ metric: name }, { startedAt: changed(event) }),
          }),
          el("span", {}, title),
        ),
      ),
    );
    this.curves = new Curves(app, pinned, () => app.redraw(this));
    this.chart = new Figure({ title: "Scaling", file: "knee-scale" });
    this.chart.element.classList.add("wide", "big");
    this.sentences = el("div", { class: "sentences" });
    this.knees = el("section", { class: "card wide" });
    this.assumptions = el("div", { class: "wide" });
    this.element = el(
      "div",
      { class: "view scale" },
      el("div", { class: "bench", hidden: pinned }, this.metric),
      pinned ? null : el("div", { class: "bench" }, this.countBox(), this.curves.adder),
      this.curves.search.element,
      this.curves.chips,
      this.sentences,
      el("div", { class: "grid" }, this.chart.element, this.knees, this.assumptions),
    );
  }

  countBox() {
    const id = uid("counts"),
      list = uid("counts-list");
    this.counts = el("input", {
      type: "text",
      id,
      list,
      size: 12,
      title: "A range by doublings (8..2048), or counts (8,64,512)",
      onchange: (event) =>
        this.app.state.set({ counts: event.target.value.trim() || null }, { startedAt: changed(event) }),
    });
    return el(
      "div",
      { class: "inline" },
      el("label", { for: id }, "GPU counts"),
      this.counts,
      el(
        "datalist",
        { id: list },
        COUNTS.map((value) => el("option", { value })),
      ),
    );
  }

  question(values) {
    const body = this.app.state.question(values, { run: false });
    delete body.gpus; // one count of many
    return { ...body, counts: this.app.state.get("counts", values), curves: this.app.state.curves(values) };
  }

  /** A change that the curves do not depend on, such as another metric, asks nothing. */
  async ask(values, signal) {
    const body = this.question(values),
      text = JSON.stringify(body);
    if (text !== this.asked) {
      this.kept = await post("/api/views/scale", body, { signal });
      this.asked = text;
    }
    this.curves.searchBest(values);
    return this.kept;
  }

  close() {
    this.curves.search.cancel();
  }

  show(answer, values, other, peer) {
    const { state } = this.app;
    const metric = METRICS.find(({ name }) => name === state.get("metric", values)) ?? METRICS[0];
    for (const input of this.metric.querySelectorAll("input")) input.checked = input.value === metric.name;
    if (this.counts && document.activeElement !== this.counts) this.counts.value = state.get("counts", values);
    const all = [...answer.curves, ...this.curves.found(values)];
    const curves = all.map((curve, i) => ({ ...curve, ...SERIES[i % SERIES.length], name: curveName(curve, all), i }));
    this.curves.show(curves, values);
    this.showChart(curves, metric, values, peer);
    this.showKnees(curves, metric);
    fill(this.sentences, curves.length === 1 ? el("p", {}, curves[0].sentence) : null);
    const assumptions = [...new Set(all.flatMap((curve) => curve.assumptions))];
    notes(this.assumptions, "Assumptions", assumptions);
    const usable = curves[0].points.filter((point) => point.usable);
    const last = usable[usable.length - 1];
    return {
      trust: last?.trust,
      trustOf: last ? `at ${count(last.gpus)} GPUs, ` : "",
      point: usable.find((point) => String(point.gpus) === state.get("gpus", values)) ?? usable[0] ?? null,
      command: curves.map((curve) => curve.command).join("\n"),
      python: curves.map((curve) => curve.python).join("\n"),
      says: curves.map((curve) => curve.sentence).join(" "),
    };
  }

  showChart(curves, metric, values, peer) {
    const most = d3.max(peer?.curves ?? [], (curve) => largest(curve, metric));
    const now = Number(this.app.state.get("gpus", values));
    const picked = this.pinned ? null : (gpus, startedAt) => this.app.state.set({ gpus }, { startedAt });
    const points = curves.flatMap((curve) =>
      curve.points
        .filter((point) => point.usable && metric.of(point) !== null)
        .map((point) => {
          const value = metric.of(point),
            band = metric.band?.(value, point) ?? null;
          return { curve, point, gpus: point.gpus, value, low: band?.[0] ?? null, high: band?.[1] ?? null };
        }),
    );
    const unusable = curves.flatMap((curve) =>
      curve.points.filter((point) => !point.usable).map((point) => ({ curve, gpus: point.gpus, reason: point.reason })),
    );
    const published = metric.published
      ? d3
          .groups(
            curves.flatMap((curve) => curve.published),
            (run) => `${run.source} ${run.gpus} ${run.tokens_per_s_per_gpu}`,
          )
          .map(([, [run]]) => run)
      : [];
    const known = [...new Set(curves.flatMap((curve) => curve.points.map((point) => point.gpus)))].sort(
      (a, b) => a - b,
    );
    const near = published.filter((run) => run.gpus >= known[0] / 1.5 && run.gpus <= known[known.length - 1] * 1.5);
    const first = curves[0].knees?.[metric.knee];
    const kneeWords = first ? ` The knee (${metric.knee}) is ${first.words}.` : "";
    this.chart.update({
      note: `${metric.title} against GPUs, ${curves[0].scaling === "strong" ? "with the same batch for all counts" : "with a batch that grows with the GPUs"}.${kneeWords}`,
      legend: [
        ...(curves.length > 1
          ? curves.map((curve) => key(curve.name, curve.colour, "line", curve.dash))
          : [key("simulated", curves[0].colour, "line")]),
        ...(metric.band
          ? [
              key(
                `range of ${percent(points[0]?.point.trust?.covered_frac ?? 0.9, 0)} of measured runs`,
                "var(--band)",
                "box",
              ),
            ]
          : []),
        ...(near.length
          ? [
              key(
                `${count(near.length)} published runs with this GPU and a model of this size`,
                "var(--muted)",
                "diamond",
              ),
            ]
          : []),
        ...(curves.some((curve) => curve.knees?.[metric.knee]?.gpus)
          ? [key("knee, with its range", curves.length > 1 ? "var(--muted)" : "var(--series-3)", "line")]
          : []),
      ],
      draw: (width) => scaleChart(width, { curves, metric, points, near, known, unusable, now, picked, most }),
      caption: `${metric.title} by GPUs`,
      columns: [
        { title: "curve", key: "curve", show: (row) => row.curve.name, raw: (row) => row.curve.name },
        { title: "GPUs", key: "gpus", number: true, show: (row) => count(row.gpus) },
        {
          title: "plan",
          key: "plan",
          show: (row) => row.point.words ?? "",
          raw: (row) => row.point.words ?? "",
        },
        ...METRICS.map((one) => ({
          title: one.title,
          key: one.name,
          number: true,
          raw: (row) => one.of(row.point),
          show: (row) => one.show(one.of(row.point)),
        })),
        {
          title: "step",
          key: "step_s",
          number: true,
          raw: (row) => row.point.step_s,
          show: (row) => seconds(row.point.step_s),
        },
        {
          title: "gain of the doubling",
          key: "return",
          number: true,
          raw: (row) => row.point.return,
          show: (row) => (row.point.return ? `${plain(row.point.return)}×` : "–"),
        },
        { title: "trust", key: "trust", raw: (row) => row.point.trust.label, show: (row) => row.point.trust.label },
        { title: "low", key: "low", number: true, show: (row) => (row.low === null ? "–" : metric.show(row.low)) },
        { title: "high", key: "high", number: true, show: (row) => (row.high === null ? "–" : metric.show(row.high)) },
      ],
      rows: points,
    });
    if (unusable.length)
      this.chart.note.textContent += ` Not usable: ${unusable
        .map((one) => `${count(one.gpus)} GPUs (${one.reason})`)
        .slice(0, 3)
        .join("; ")}${unusable.length > 3 ? " and more" : ""}.`;
  }

  showKnees(curves, metric) {
    const goals = ["throughput", "energy", "cost"];
    const rows = curves.flatMap((curve) =>
      goals
        .filter((goal) => curve.knees?.[goal])
        .map((goal) => ({ curve, goal, knee: curve.knees[goal], failing: curve.knees_with_failures?.[goal] })),
    );
    const sentences =
      curves.length > 1
        ? el(
            "ul",
            {},
            curves.map((curve) => el("li", {}, el("strong", {}, `${curve.name}: `), curve.sentence)),
          )
        : null;
    fill(
      this.knees,
      el("h2", {}, "Where adding GPUs stops paying off"),
      sentences,
      rows.length
        ? scroll(
            "Knees",
            table(
              "The knee by goal",
              [
                ...(curves.length > 1 ? [{ title: "curve", show: (row) => row.curve.name }] : []),
                { title: "goal", show: (row) => row.goal },
                { title: "knee", number: true, show: (row) => atLeast(row.knee) },
                { title: "range", show: (row) => rangeWords(row.knee) },
                { title: "with failures", number: true, show: (row) => (row.failing ? atLeast(row.failing) : "–") },
                { title: "means", show: (row) => row.knee.words },
              ],
              rows,
              { rowAttributes: (row) => (row.goal === metric.knee ? { class: "marked" } : {}) },
            ),
          )
        : el("p", {}, "No count of GPUs can be used with this plan."),
    );
  }
}

const atLeast = (knee) => (knee.gpus ? `${count(knee.gpus)}${knee.open ? " or more" : ""} GPUs` : "–");
const rangeWords = (knee) =>
  knee.low_gpus ? `${count(knee.low_gpus)} to ${count(knee.high_gpus)}${knee.high_open ? " or more" : ""}` : "unknown";

/** What a curve's chart has to reach up to. */
function largest(curve, metric) {
  const points = curve.points.filter((point) => point.usable && metric.of(point) !== null);
  const ends = points.map((point) => metric.band?.(metric.of(point), point)?.[1] ?? metric.of(point));
  return d3.max([...ends, ...(metric.published ? curve.published.map((run) => run.tokens_per_s_per_gpu) : [])]);
}
