// How far an answer can be trusted, always in sight.

import { details, el } from "./dom.js";
import { count, counted, percent, signed } from "./format.js";

const MEANING = {
  validated: "very similar runs were published",
  near: "similar runs were published",
  extrapolated: "no similar run was published",
};
const SIGN = { validated: "●", near: "◐", extrapolated: "○" };

export function badge(label) {
  return el("span", { class: `badge ${label}` }, `${SIGN[label] ?? ""} ${label}`);
}

/** The band in words: what is measured lies so far from the prediction. */
export function bandWords(trust) {
  if (!trust || trust.low_frac === null || trust.low_frac === undefined) return "the error is unknown";
  return `${percent(trust.covered_frac, 0)} of measured runs lie ${signed(trust.low_frac)} to ${signed(trust.high_frac)} from the prediction`;
}

/** Into the strip below the tabs; `sources` are where the runs behind its band were published. */
export function showTrust(strip, trust, what = "", sources = []) {
  if (!trust) {
    strip.replaceChildren();
    return;
  }
  const [wasOpen, listed] = [...strip.querySelectorAll("details")].map((fold) => fold.open);
  const basis = trust.basis_runs
    ? `by the errors on ${count(trust.basis_runs)} published runs of ${count(trust.sources)} sources`
    : "";
  const near = [`${count(trust.runs ?? 0)} published runs are like this job in every size`];
  if (trust.kind_runs) near.push(`${count(trust.kind_runs)} are of its kind`);
  const reasons = trust.reasons ?? [];
  const title = trust.label === "extrapolated" ? "What is extrapolated" : "What it stands on";
  const more = el(
    "details",
    {},
    el("summary", {}, `${title}${reasons.length ? ` (${reasons.length})` : ""}`),
    el(
      "ul",
      {},
      reasons.map((reason) => el("li", {}, reason)),
      el("li", {}, `${near.join("; ")}. The range of errors comes from runs that were not used for fitting.`),
      trust.memory_runs
        ? el(
            "li",
            {},
            `Memory: ${percent(trust.covered_frac, 0)} of ${count(trust.memory_runs)} published runs lie between ` +
              `${signed(trust.memory_low_frac)} and ${signed(trust.memory_high_frac)} around the prediction.`,
          )
        : null,
    ),
  );
  if (sources.length) {
    more.append(
      details(
        `Published runs that the range comes from, by source (${sources.length})`,
        el(
          "ul",
          {},
          sources.map(({ reference, runs }) => el("li", {}, `${reference}: ${counted(runs, "run")}`)),
        ),
      ),
    );
  }
  for (const [fold, open] of [
    [more, wasOpen],
    [more.querySelector("details"), listed],
  ])
    if (fold) fold.open = Boolean(open);
  strip.replaceChildren(
    badge(trust.label),
    el("span", { class: "meaning" }, `${what}${MEANING[trust.label] ?? ""}`),
    el("span", {}, bandWords(trust)),
    el("span", { class: "small basis" }, basis),
    more,
  );
}
