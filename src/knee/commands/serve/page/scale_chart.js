// The chart of the Scale view: lines with bands, knees, published runs.

import { plot } from "./charts.js";
import { count, percent, plain, seconds, short, words } from "./format.js";
import { label, show } from "./metrics.js";
import { changed } from "./timing.js";

const { Plot } = window;
const banded = (value, { trust }) =>
  trust?.low_frac === null || trust?.low_frac === undefined
    ? null
    : [value * (1 + trust.low_frac), value * (1 + trust.high_frac)];

/** What the chart can show; `band` is the range of what is measured, and `knee` the goal that belongs to it. */
export const METRICS = [
  {
    name: "tokens_per_s_per_gpu",
    band: banded,
    show: count,
    knee: "throughput",
    published: true,
  },
  {
    name: "mfu_frac",
    band: banded,
    knee: "throughput",
    tick: ".0%",
  },
  {
    name: "exposed_frac",
    of: (p) => p.exposed_comm_s / p.step_s,
    knee: "throughput",
    tick: ".0%",
  },
  { name: "power_w_per_gpu", knee: "energy" },
  {
    name: "tokens_per_j",
    band: banded,
    knee: "energy",
  },
  {
    name: "usd_per_mtoken",
    knee: "cost",
    tick: "$~g",
    band: (value, p) =>
      p.trust?.low_frac === null || p.trust?.low_frac === undefined || p.trust.low_frac <= -1
        ? null
        : [value / (1 + p.trust.high_frac), value / (1 + p.trust.low_frac)],
  },
  {
    name: "tokens_per_s",
    band: banded,
    show: short,
    knee: "throughput",
    tick: "~s",
    log: true,
  },
].map((one) => ({
  of: (point) => point[one.name],
  show: (value) => show(one.name, value),
  ...one,
  get title() {
    return label(one.name);
  },
}));

/**
 * `now` is the count of the question; `picked(gpus, startedAt)` is told of a point that is chosen; `most` is the largest
 * value of a chart beside it, so that both have the same scale.
 */
export function scaleChart(width, { curves, metric, points, near, known, unusable, now, picked, most }) {
  const narrow = width < 520,
    height = Math.round(Math.max(280, Math.min(460, width * 0.5)));
  const knees = curves.map((curve) => ({ curve, knee: curve.knees?.[metric.knee] })).filter(({ knee }) => knee?.gpus);
  const inside = new Set(near);
  const ideal = metric.name === "tokens_per_s_per_gpu" && curves.length === 1 && points.length ? points[0].value : null;
  const here = points.filter((point) => point.gpus === now);
  const tipped = [...points, ...[...inside].map((run) => ({ run, gpus: run.gpus, value: run.tokens_per_s_per_gpu }))];
  const label = `${metric.title} against GPUs. ${curves
    .map(
      (curve) =>
        `${curve.name}: ${points
          .filter((p) => p.curve === curve)
          .map((p) => `${count(p.gpus)} GPUs ${metric.show(p.value)}`)
          .join(", ")}`,
    )
    .join(". ")}.`;
  const svg = plot(label, {
    width,
    height,
    marginLeft: narrow ? 46 : 58,
    marginBottom: 40,
    marginTop: 30,
    x: {
      type: "log",
      base: 2,
      domain: [known[0] * 0.9, known[known.length - 1] * 1.1],
      ticks: narrow ? known.filter((_, i) => i % 2 === 0) : known,
      tickFormat: (value) => count(value),
      label: "GPUs →",
      grid: false,
    },
    y: {
      grid: true,
      zero: !metric.log && metric.name !== "power_w_per_gpu",
      type: metric.log ? "log" : "linear",
      label: `↑ ${metric.title}`,
      tickFormat: metric.tick ?? (narrow ? (value) => short(value, 2) : plain),
      nice: true,
      ticks: 6,
    },
    marks: [
      most > 0 && !metric.log ? Plot.ruleY([most], { strokeOpacity: 0 }) : null,
      knees.map(({ knee }) =>
        knee.low_gpus && knee.high_gpus && curves.length === 1
          ? Plot.rectX([knee], { x1: "low_gpus", x2: "high_gpus", fill: "var(--series-3)", fillOpacity: 0.1 })
          : null,
      ),
      metric.band
        ? Plot.areaY(
            points.filter((p) => p.low !== null),
            {
              x: "gpus",
              y1: "low",
              y2: "high",
              z: (p) => p.curve.i,
              fill: (p) => p.curve.colour,
              fillOpacity: curves.length > 1 ? 0.08 : 0.13,
            },
          )
        : null,
      ideal ? Plot.ruleY([ideal], { stroke: "var(--ideal)", strokeDasharray: "4,4" }) : null,
      ideal
        ? Plot.text([ideal], {
            y: (v) => v,
            frameAnchor: "left",
            text: () => "ideal",
            dy: -8,
            dx: 30,
            textAnchor: "start",
            fill: "var(--muted)",
          })
        : null,
      Plot.dot([...inside], {
        x: "gpus",
        y: "tokens_per_s_per_gpu",
        symbol: "diamond2",
        stroke: "var(--muted)",
        strokeWidth: 1.4,
        r: 3.5,
        fill: "none",
      }),
      curves.map((curve) =>
        Plot.line(
          points.filter((p) => p.curve === curve),
          { x: "gpus", y: "value", stroke: curve.colour, strokeWidth: 2.2, strokeDasharray: curve.dash },
        ),
      ),
      Plot.dot(points, { x: "gpus", y: "value", fill: (p) => p.curve.colour, r: 3 }),
      here.length
        ? Plot.dot(here, {
            x: "gpus",
            y: "value",
            stroke: (p) => p.curve.colour,
            fill: "var(--paper)",
            strokeWidth: 2.5,
            r: 5.5,
          })
        : null,
      knees.map(({ curve, knee }) =>
        Plot.ruleX([knee.gpus], {
          stroke: curves.length > 1 ? curve.colour : "var(--series-3)",
          strokeWidth: 2,
          strokeDasharray: knee.open ? "3,3" : undefined,
          strokeOpacity: 0.9,
        }),
      ),
      curves.length > 1
        ? knees
            .filter(({ knee }) => !knee.open)
            .map(({ curve, knee }, i) =>
              Plot.text([knee], {
                x: "gpus",
                frameAnchor: "top",
                dy: 6 + 15 * i,
                dx: -5,
                text: () => `${curve.name}: ${kneeWords(knee)}`,
                fill: curve.colour,
                fontWeight: 600,
                textAnchor: "end",
              }),
            )
        : null,
      (curves.length > 1 ? [] : knees).map(({ knee }) =>
        Plot.text([knee], {
          x: "gpus",
          frameAnchor: "top",
          dy: -14,
          text: () => kneeWords(knee),
          fill: "var(--series-3)",
          fontWeight: 600,
          textAnchor:
            Math.log2(knee.gpus / known[0]) > 0.6 * Math.log2(known[known.length - 1] / known[0])
              ? "end"
              : Math.log2(knee.gpus / known[0]) < 0.25 * Math.log2(known[known.length - 1] / known[0])
                ? "start"
                : "middle",
        }),
      ),
      unusable.length
        ? Plot.text(unusable, { x: "gpus", frameAnchor: "bottom", dy: -6, text: () => "✕", fill: "var(--bad)" })
        : null,
      Plot.tip(tipped, Plot.pointer({ x: "gpus", y: "value", title: (p) => tipWords(p, metric), maxRadius: 120 })),
    ]
      .flat(2)
      .filter(Boolean),
    color: { type: "identity" },
  });
  if (picked) {
    svg.addEventListener("click", (event) => {
      if (svg.value?.point) picked(svg.value.gpus, changed(event));
    });
  }
  return svg;
}

const kneeWords = (knee) => (knee.open ? `no knee up to ${count(knee.gpus)} GPUs` : `knee: ${count(knee.gpus)} GPUs`);

function tipWords(p, metric) {
  if (p.run) {
    const { run } = p;
    return `published: ${count(run.tokens_per_s_per_gpu)} tokens/s per GPU\n${run.model} on ${count(run.gpus)} GPUs\n${run.words}, ${words(run.profile)}\n${run.reference.slice(0, 60)}`;
  }
  const band = p.low === null ? "" : `\n${metric.show(p.low)} to ${metric.show(p.high)}`;
  return `${p.curve.name}, ${count(p.gpus)} GPUs\n${metric.title} ${metric.show(p.value)}${band}\nstep ${seconds(p.point.step_s)}, ${percent(p.point.exposed_comm_s / p.point.step_s)} exposed, ${p.point.trust.label}`;
}
