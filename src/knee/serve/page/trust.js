// How far an answer can be trusted, always in sight.

import { el } from "./dom.js";
import { count, percent, signed } from "./format.js";

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

/** Into the strip below the tabs. */
export function showTrust(strip, trust, what = "") {
  if (!trust) {
    strip.replaceChildren();
    return;
  }
  const wasOpen = strip.querySelector("details")?.open ?? false;
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
  more.open = wasOpen;
  strip.replaceChildren(
    badge(trust.label),
    el("span", {}, `${what}${MEANING[trust.label] ?? ""}`),
    el("span", {}, bandWords(trust)),
    el("span", { class: "small" }, basis),
    more,
  );
}
