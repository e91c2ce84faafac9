// The map of a budget: model size against tokens, curves of equal loss, and limits as lines with handles.

import { plot } from "./charts.js";
import { svgEl, uid } from "./dom.js";
import { plain, short, usd } from "./format.js";
import { changed } from "./timing.js";

const { Plot } = window;

/** Limits in the order in which they are shown; `of(run)` is what a run takes of it. */
export const LIMITS = [
  {
    name: "days",
    title: "days",
    unit: "days",
    of: (run) => run.days,
    colour: "var(--series-1)",
    dash: "6,3",
    show: (value) => `${plain(value)} days`,
    least: 0.1,
    most: 2000,
  },
  {
    name: "usd",
    title: "dollars",
    unit: "USD",
    of: (run) => run.cost_usd,
    colour: "var(--series-2)",
    dash: "2,2",
    show: usd,
    least: 100,
    most: 1e11,
  },
  {
    name: "mwh",
    title: "energy",
    unit: "MWh",
    of: (run) => run.energy_mwh,
    colour: "var(--series-3)",
    dash: "9,2,2,2",
    show: (value) => `${plain(value)} MWh`,
    least: 0.01,
    most: 1e8,
  },
  {
    name: "tokens_max",
    title: "tokens of data",
    unit: "tokens",
    of: (run) => run.tokens,
    colour: "var(--series-4)",
    dash: "4,1",
    show: (value) => `${short(value)} tokens`,
    least: 1e8,
    most: 1e15,
  },
];

/** `moved(name, value, options)` is told of every new place of a line; null where lines cannot be moved. */
export function budgetMap(width, { lines, curves: contours, marks, runs }, moved) {
  const all = [...lines.flatMap((line) => line.points), ...marks],
    narrow = width < 520;
  const [x0, x1] = d3.extent(all, (p) => p.params),
    [y0, y1] = d3.extent(all, (p) => p.tokens);
  const y = [y0 / 1.6, y1 * 1.6],
    x = [x0 / 1.15, x1 * 1.15];
  const curves = contours
    .map((curve) => ({
      ...curve,
      points: curve.points
        .map(([params, tokens]) => ({ params, tokens, loss: curve.loss }))
        .filter((p) => p.params >= x[0] && p.params <= x[1] && p.tokens >= y[0] && p.tokens <= y[1]),
    }))
    .filter((curve) => curve.points.length > 1);
  const chart = plot(
    `Model size against tokens. ${marks.map((mark) => `${mark.what}: ${short(mark.params)} parameters, ${short(mark.tokens)} tokens, loss ${plain(mark.loss, 4)}`).join(". ")}. ` +
      `${lines.map((line) => `Limit: ${line.show(line.value)}`).join(". ")}.`,
    {
      width,
      height: Math.round(Math.max(320, Math.min(500, width * 0.52))),
      marginLeft: narrow ? 44 : 56,
      marginBottom: 42,
      marginRight: narrow ? 16 : 60,
      marginTop: 28,
      x: {
        type: "log",
        domain: x,
        label: "parameters →",
        tickFormat: (value) => short(value, 2),
        ticks: narrow ? 3 : 8,
      },
      y: { type: "log", domain: y, label: "↑ tokens", tickFormat: (value) => short(value, 2), ticks: 5, grid: true },
      marks: [
        curves.map((curve) =>
          Plot.line(curve.points, { x: "params", y: "tokens", stroke: "var(--ideal)", strokeWidth: 1.3, clip: true }),
        ),
        Plot.text(
          curves.map((curve) => curve.points[curve.points.length - 1]),
          {
            x: "params",
            y: "tokens",
            text: (p) => plain(p.loss, 4),
            fill: "var(--muted)",
            textAnchor: "start",
            dx: 4,
          },
        ),
        lines.map((line) =>
          Plot.line(line.points, {
            x: "params",
            y: "tokens",
            stroke: line.colour,
            strokeWidth: 2.4,
            strokeDasharray: line.dash,
          }),
        ),
        Plot.dot(runs, { x: "params", y: "tokens", fill: "var(--muted)", r: 2.5 }),
        Plot.link(marks.length > 2 ? [marks.slice(1)] : [], {
          x1: (m) => m[0].params,
          y1: (m) => m[0].tokens,
          x2: (m) => m[1].params,
          y2: (m) => m[1].tokens,
          stroke: "var(--bad)",
          strokeDasharray: "2,2",
        }),
        Plot.dot(marks, {
          x: "params",
          y: "tokens",
          fill: (m) => (m.symbol === "star" ? m.colour : "none"),
          stroke: "colour",
          strokeWidth: 2.5,
          symbol: "symbol",
          r: "r",
        }),
        Plot.tip(
          [...marks, ...runs],
          Plot.pointer({
            x: "params",
            y: "tokens",
            maxRadius: 30,
            title: (p) =>
              `${p.what}\n${short(p.params)} parameters, ${short(p.tokens)} tokens\nloss ${plain(p.loss, 4)}`,
          }),
        ),
      ].flat(),
      color: { type: "identity" },
      symbol: { type: "identity" },
      r: { type: "identity" },
    },
  );
  if (moved) {
    chart.setAttribute("role", "group"); // its handles are controls
    lines.forEach((line, i) => chart.append(handle(line, chart, x, i / Math.max(lines.length, 1), moved)));
  }
  return chart;
}

/** A slider on a line: moving it up by some factor allows so many times the tokens, and so many times the limit. */
function handle(line, chart, x, shift, moved) {
  const [x0, x1] = x,
    [sx, sy] = [chart.scale("x"), chart.scale("y")],
    at = Math.exp(Math.log(x0) + (0.28 + 0.4 * shift) * Math.log(x1 / x0));
  const right = line.points.findIndex((p) => p.params >= at),
    [a, b] = [line.points[Math.max(right - 1, 0)], line.points[Math.max(right, 0)]];
  const share = a === b ? 0 : Math.log(at / a.params) / Math.log(b.params / a.params),
    tokens = a.tokens * (b.tokens / a.tokens) ** share;
  const place = [sx.apply(at), sy.apply(tokens)],
    unitsPerPixel = (Math.log(sy.domain[1]) - Math.log(sy.domain[0])) / Math.abs(sy.range[1] - sy.range[0]);
  const node = svgEl(
    "g",
    {
      class: "handle",
      tabindex: 0,
      role: "slider",
      "aria-label": `Limit: ${line.title}`,
      "aria-valuemin": line.least,
      "aria-valuemax": line.most,
      "aria-valuenow": line.value,
      "aria-valuetext": line.show(line.value),
      "data-limit": line.name,
      transform: `translate(${place.join(" ")})`,
    },
    svgEl("circle", { r: 16, fill: "transparent" }),
    svgEl("circle", { r: 8, fill: "var(--paper)", stroke: line.colour, "stroke-width": 3 }),
    svgEl("path", { d: "M-3 -2L0 -5L3 -2M-3 2L0 5L3 2", fill: "none", stroke: "var(--ink)" }),
  );
  const set = (value, event, gesture = null) => {
    const kept = Math.min(line.most, Math.max(line.least, Number(value.toPrecision(3))));
    moved(line.name, kept, { startedAt: changed(event), gesture });
  };
  node.addEventListener("keydown", (event) => {
    const factor = {
      ArrowUp: 1.05,
      ArrowRight: 1.05,
      ArrowDown: 1 / 1.05,
      ArrowLeft: 1 / 1.05,
      PageUp: 2,
      PageDown: 0.5,
    }[event.key];
    if (factor === undefined) return;
    event.preventDefault();
    set(line.value * factor, event);
  });
  node.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    node.focus();
    const from = event.clientY,
      gesture = uid("drag");
    const move = (moved) => set(line.value * Math.exp((from - moved.clientY) * unitsPerPixel), moved, gesture);
    const end = () => {
      removeEventListener("pointermove", move);
      moved(line.name, null); // released
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end, { once: true });
    addEventListener("pointercancel", end, { once: true });
  });
  return node;
}
