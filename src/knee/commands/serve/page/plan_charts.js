// The charts of the Plan view: plans by speed and memory, tensor against pipeline parallelism, sensitivity.

import { key, plot } from "./charts.js";
import { bytes, count, percent, plain, signed } from "./format.js";
import { column } from "./metrics.js";

const { Plot } = window;
export const COLUMNS = [
  { title: "rank", key: "rank", number: true, show: (row) => count(row.rank) },
  { title: "plan", key: "plan", raw: (row) => row.words, show: (row) => row.words },
  ...[
    "tokens_per_s_per_gpu",
    "mfu_frac",
    "step_s",
    "exposed_frac",
    "bubble_frac",
    "memory_bytes",
    "power_w_per_gpu",
    "tokens_per_j",
    "usd_per_mtoken",
    "good_frac",
  ].map(column),
];

/** `is(row)` tells the plan of the question, `pick(row, event)` makes a row that plan. */
export function showFront(figure, rows, front, is, pick) {
  const ranked = new Set(front.map((row) => JSON.stringify(row.plan)));
  const all = [...front, ...rows.filter((row) => !ranked.has(JSON.stringify(row.plan)))].map((row) => ({
    ...row,
    gib: row.memory_bytes / 2 ** 30,
    onFront: ranked.has(JSON.stringify(row.plan)),
  }));
  const onFront = all.filter((row) => row.onFront).sort((a, b) => a.gib - b.gib);
  figure.update({
    note: "Plans on the front are beaten by no other in speed, energy and free memory at once. Choose a point to use its plan.",
    legend: [key("on the front", "var(--series-2)", "dot"), key("other plans of the ranking", "var(--edge)", "box")],
    draw: (width) => {
      const svg = plot(
        `${count(all.length)} plans by memory and tokens per second per GPU; ${count(onFront.length)} are on the front.`,
        {
          width,
          height: 300,
          marginLeft: 52,
          marginBottom: 40,
          x: { label: "memory per GPU (GiB) →", nice: true, grid: true },
          y: { label: "↑ tokens/s per GPU", tickFormat: "~s", nice: true, grid: true },
          marks: [
            Plot.line(onFront, {
              x: "gib",
              y: "tokens_per_s_per_gpu",
              stroke: "var(--series-2)",
              strokeOpacity: 0.4,
            }),
            Plot.dot(all, {
              x: "gib",
              y: "tokens_per_s_per_gpu",
              fill: (row) => (row.onFront ? "var(--series-2)" : "var(--edge)"),
              r: (row) => (row.onFront ? 5 : 4),
              symbol: (row) => (row.onFront ? "circle" : "square"),
            }),
            Plot.dot(all.filter(is), {
              x: "gib",
              y: "tokens_per_s_per_gpu",
              stroke: "var(--ink)",
              strokeWidth: 2,
              r: 9,
            }),
            Plot.tip(
              all,
              Plot.pointer({
                x: "gib",
                y: "tokens_per_s_per_gpu",
                title: (row) =>
                  `${row.words}\n${count(row.tokens_per_s_per_gpu)} tokens/s per GPU, ${bytes(row.memory_bytes)}\n${plain(row.tokens_per_j)} tokens per joule`,
              }),
            ),
          ],
          color: { type: "identity" },
          r: { type: "identity" },
          symbol: { type: "identity" },
        },
      );
      if (pick)
        svg.addEventListener("click", (event) => {
          if (svg.value) pick(svg.value, event);
        });
      return svg;
    },
    caption: "Plans by speed, energy and memory",
    columns: [
      ...COLUMNS.filter((column) => column.key !== "rank" && column.key !== "good_frac").sort(
        (a, b) => Number(b.key === "plan") - Number(a.key === "plan"),
      ),
      { title: "on the front", key: "onFront", show: (row) => (row.onFront ? "yes" : "no") },
    ],
    rows: all,
  });
}

export function showHeat(figure, heat, pick) {
  const cells = heat.map((cell) => ({ ...cell, value: cell.tokens_per_s_per_gpu ?? null }));
  const known = cells.filter((cell) => cell.value !== null),
    most = d3.max(known, (cell) => cell.value),
    least = d3.min(known, (cell) => cell.value);
  const shade = (value) => Math.min(6, Math.floor(((value - least) / Math.max(most - least, 1e-9)) * 6.999));
  const tps = [...new Set(cells.map((cell) => cell.tp))].sort((a, b) => a - b),
    pps = [...new Set(cells.map((cell) => cell.pp))].sort((a, b) => a - b);
  figure.element.hidden = !cells.length;
  figure.update({
    note: "Tokens/s per GPU of the best plan with each pair of degrees. Choose a cell to use its plan.",
    draw: (width) => {
      const svg = plot(
        `Best tokens per second per GPU by tensor and pipeline parallelism: ${known.map((cell) => `tp ${cell.tp} pp ${cell.pp} ${count(cell.value)}`).join(", ")}.`,
        {
          width,
          height: Math.max(180, 54 * pps.length + 60),
          marginLeft: 46,
          marginBottom: 40,
          padding: 0.04,
          x: { type: "band", domain: tps, label: "tensor parallelism (tp) →" },
          y: { type: "band", domain: pps, label: "↑ pipeline stages (pp)", reverse: true },
          marks: [
            Plot.cell(cells, {
              x: "tp",
              y: "pp",
              fill: (cell) => (cell.value === null ? "var(--card)" : `var(--more-${shade(cell.value)})`),
              stroke: (cell) => (cell.value === null ? "var(--hatch)" : "none"),
              strokeDasharray: "2,3",
              rx: 3,
            }),
            Plot.text(cells, {
              x: "tp",
              y: "pp",
              text: (cell) =>
                cell.value === null ? "no fit" : width < 420 ? d3.format(".2~s")(cell.value) : count(cell.value),
              fill: (cell) =>
                cell.value === null ? "var(--muted)" : shade(cell.value) > 4 ? "var(--on-strong)" : "var(--on-pale)",
            }),
            Plot.tip(
              cells,
              Plot.pointer({
                x: "tp",
                y: "pp",
                title: (cell) =>
                  cell.value === null
                    ? `tp ${cell.tp}, pp ${cell.pp}: ${cell.reason ?? "no plan fits"}`
                    : `${cell.words}\n${count(cell.value)} tokens/s per GPU`,
              }),
            ),
          ],
          color: { type: "identity" },
        },
      );
      if (pick)
        svg.addEventListener("click", (event) => {
          if (svg.value?.plan) pick(svg.value, event);
        });
      return svg;
    },
    caption: "Best plan of each pair of degrees",
    columns: [
      { title: "tp", key: "tp", show: (cell) => String(cell.tp) },
      { title: "pp", key: "pp", number: true, show: (cell) => String(cell.pp) },
      {
        title: "tokens/s per GPU",
        key: "value",
        number: true,
        show: (cell) => (cell.value === null ? "no plan fits" : count(cell.value)),
      },
      { title: "plan", key: "plan", raw: (cell) => cell.words ?? "", show: (cell) => cell.words ?? "" },
    ],
    rows: cells,
  });
}

export function showSensitivity(figure, parts) {
  figure.element.hidden = !parts.length;
  const rows = [...parts].sort((a, b) => b.better_frac - a.better_frac);
  figure.update({
    note: "Change of tokens/s with 25% more and 25% less of each resource; the plan is optimised again each time.",
    draw: (width) =>
      plot(`Sensitivity: ${rows.map((row) => `${row.title} ${signed(row.better_frac)}`).join(", ")}.`, {
        width,
        height: 34 * rows.length + 46,
        marginLeft: Math.min(150, width * 0.36),
        marginBottom: 34,
        x: { tickFormat: "+.0%", label: null, grid: true, nice: true },
        y: { domain: rows.map((row) => row.title), label: null },
        marks: [
          Plot.barX(rows, { x: "better_frac", y: "title", fill: "var(--bar)", insetTop: 4, insetBottom: 4 }),
          Plot.barX(rows, { x: "worse_frac", y: "title", fill: "var(--series-1)", insetTop: 4, insetBottom: 4 }),
          Plot.ruleX([0], { stroke: "var(--ink)" }),
        ],
      }),
    legend: [key("25% more", "var(--bar)"), key("25% less", "var(--series-1)")],
    caption: "Sensitivity of the best plan",
    columns: [
      { title: "resource", key: "title", show: (row) => row.title },
      { title: "25% more", key: "better_frac", number: true, show: (row) => percent(row.better_frac) },
      { title: "25% less", key: "worse_frac", number: true, show: (row) => percent(row.worse_frac) },
    ],
    rows,
  });
}
