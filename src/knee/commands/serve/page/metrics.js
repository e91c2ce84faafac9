// Metrics as the server declares them in /api/catalog: label, heading, unit, and which direction is better.

import { bytes, percent, plain, seconds, usd, watts } from "./format.js";

const FORMATS = { s: seconds, bytes, frac: percent, w_per_gpu: watts, usd };
let metrics = {};

/** Called once, before anything is drawn. */
export function setMetrics(table) {
  metrics = table;
}

const metric = (name) => metrics[name] ?? { label: name, heading: name, unit: "", better: "" };

/** A metric's name for people, and the shorter one of a table's column. */
export const label = (name) => metric(name).label;
export const lessIsBetter = (name) => metric(name).better === "less";

/** A value with its unit. */
export const show = (name, value) => (FORMATS[metric(name).unit] ?? plain)(value);

/** A column of a table of rows that have the metric as a key; a column that is new is sorted from its better end. */
export const column = (name) => ({
  key: name,
  number: true,
  show: (row) => show(name, row[name]),
  get title() {
    return metric(name).heading;
  },
  get down() {
    return metric(name).better === "more";
  },
});
