// The tables of the Budget view.

import { el, fill, scroll, table } from "./dom.js";
import { count, percent, plain, short, usd } from "./format.js";

export function showChoices(place, { best, flop_counting: flop }) {
  const really = flop.really ?? {},
    rows = [
      ["parameters", best.params, flop.all_params ?? flop.params, really.params, short],
      ["tokens", best.tokens, flop.tokens, really.tokens, short],
      ["loss", best.loss, flop.loss, really.loss, (v) => plain(v, 4)],
      ["GPUs", best.gpus, flop.gpus, really.gpus, count],
      ["days", best.days, flop.days, really.days, plain],
      ["cost", best.cost_usd, flop.cost_usd, really.cost_usd, usd],
      ["MFU", best.mfu_frac, flop.mfu_frac, really.mfu_frac, percent],
    ];
  fill(
    place,
    el("h2", {}, "Against plain FLOP counting"),
    scroll(
      "The best run beside plain FLOP counting",
      table(
        `FLOP counting assumes ${percent(flop.mfu_frac, 0)} MFU for every size`,
        [
          { title: "what", show: ([name]) => name },
          { title: "with communication", number: true, show: ([, value, , , show]) => show(value) },
          { title: "counting FLOP", number: true, show: ([, , value, , show]) => show(value) },
          {
            title: "what that really reaches",
            number: true,
            show: ([, , , value, show]) => (value === undefined ? "–" : show(value)),
          },
        ],
        rows,
      ),
    ),
    flop.lost
      ? el("p", { class: "small" }, `Counting FLOP alone loses ${percent(flop.lost.budget_frac)} of the budget.`)
      : "",
  );
}

export function showGpus(place, { by_gpus: runs, best }) {
  fill(
    place,
    el("h2", {}, "By GPUs"),
    scroll(
      "Best run by GPUs",
      table(
        "The best run with each number of GPUs",
        [
          { title: "GPUs", show: (run) => count(run.gpus) },
          { title: "parameters", number: true, show: (run) => short(run.params) },
          { title: "tokens", number: true, show: (run) => short(run.tokens) },
          { title: "loss", number: true, show: (run) => plain(run.loss, 4) },
          { title: "days", number: true, show: (run) => plain(run.days) },
          { title: "cost", number: true, show: (run) => usd(run.cost_usd) },
        ],
        runs,
        { rowAttributes: (run) => (run.gpus === best.gpus ? { class: "marked" } : {}) },
      ),
    ),
  );
}

export function showMarginal(place, { marginal, law }) {
  fill(
    place,
    el("h2", {}, "What one more unit is worth"),
    scroll(
      "Worth of one more unit of each limit",
      table(
        "Change of the loss",
        [
          { title: "one more", show: (row) => row.what },
          { title: "loss", number: true, show: (row) => (row.loss === null ? "–" : tiny(row.loss)) },
          { title: "limits the run", show: (row) => (row.binds ? "yes" : "no") },
          { title: "how", show: (row) => row.how },
        ],
        marginal,
      ),
    ),
    el("p", { class: "small" }, `Law ${law.name}: ${law.source}.`),
  );
}

const tiny = (value) =>
  (value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential(1) : plain(value)).replace("-", "−");
