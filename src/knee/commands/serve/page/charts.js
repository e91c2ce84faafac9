// A figure: a chart by Observable Plot, its values as a table, and both as files.

import { el, details, scroll, table } from "./dom.js";
import { save, csvOf, svgOf } from "./files.js";

const { Plot } = window;

// Plot writes a <style> element into each chart, which the content security policy forbids. Charts are therefore made in a
// document that is never shown, lose that element there, and move into the page; page.css has the same rules.
const workshop = document.implementation.createHTMLDocument("");
const place = {
  documentElement: workshop.documentElement,
  defaultView: window,
  createTextNode: (text) => document.createTextNode(text),
};

/** Plot.plot with the page's type and colours; `label` is what a screen reader says. */
export function plot(label, options) {
  const svg = Plot.plot({ marginTop: 24, marginRight: 20, ...options, className: "plot", document: place });
  svg.querySelectorAll("style").forEach((style) => style.remove());
  for (const part of svg.querySelectorAll("[aria-label]")) {
    // Plot labels groups, which have no role; the chart has a label as a whole
    part.setAttribute("data-part", part.getAttribute("aria-label"));
    part.removeAttribute("aria-label");
  }
  svg.querySelectorAll("[aria-description]").forEach((part) => part.removeAttribute("aria-description"));
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  svg.removeAttribute("font-family");
  svg.removeAttribute("font-size");
  return svg;
}

/** Colours and dashes of curves, as in knee's figures: told apart without colour too. */
export const SERIES = [
  { colour: "var(--series-0)", dash: undefined },
  { colour: "var(--series-1)", dash: "6,3" },
  { colour: "var(--series-2)", dash: "2,2" },
  { colour: "var(--series-3)", dash: "9,2,2,2" },
  { colour: "var(--series-4)", dash: "4,1" },
  { colour: "var(--series-5)", dash: "12,3" },
];

/** Resizes are seen once for all charts, and drawn at most once a frame. */
const seen = new ResizeObserver((entries) =>
  requestAnimationFrame(() => {
    for (const { target } of entries) target.figure?.resized();
  }),
);

export class Figure {
  /**
   * `file` names downloads: knee-step-memory.svg.
   * @param {{id?: string, title: string, file: string, level?: string, tools?: Node[]}} options
   */
  constructor({ id, title, file, level = "h2", tools = [] }) {
    this.file = file;
    this.title = title;
    this.note = el("p", { class: "small" });
    this.drawing = el("div", { class: "drawing" });
    this.drawing.figure = this;
    this.values = el("div", {});
    this.table = details("Values as a table", this.values);
    this.table.addEventListener("toggle", () => this.fill());
    this.legend = el("div", { class: "legend" });
    const button = (words, what, act) =>
      el("button", { type: "button", class: "plain", "aria-label": `${title}: ${what}`, onclick: act }, words);
    this.tools = el(
      "div",
      { class: "tools" },
      tools,
      button("SVG", "download as SVG", () => this.saveSvg()),
      button("CSV", "download the values as CSV", () => this.saveCsv()),
    );
    this.element = el(
      "figure",
      { id, class: "chart" },
      el("figcaption", {}, el("div", { class: "heading" }, el(level, {}, title), this.tools), this.note),
      this.legend,
      this.drawing,
      this.table,
    );
    seen.observe(this.drawing);
  }

  /**
   * `draw(width)` gives the chart; `columns` and `rows` are what it shows.
   * @param {{note?: string, draw: (width: number) => any, columns?: Column[], rows?: any[], caption?: string, legend?: Node[]}} what
   */
  update({ note = "", draw, columns, rows, caption = "", legend = [] }) {
    this.draw = draw;
    this.columns = columns;
    this.rows = rows;
    this.caption = caption;
    this.note.textContent = note;
    this.legend.replaceChildren(...legend);
    this.width ||= this.drawing.clientWidth; // measuring makes the browser lay the page out; resized() hears of changes
    if (this.width > 0) this.drawing.replaceChildren(...[draw(this.width)].flat().filter(Boolean));
    if (this.table.open) this.fill();
  }

  resized() {
    const width = this.drawing.clientWidth;
    if (!this.draw || width === 0 || width === this.width) return;
    this.width = width;
    this.drawing.replaceChildren(...[this.draw(width)].flat().filter(Boolean));
  }

  fill() {
    if (!this.table.open || !this.columns) return;
    this.values.replaceChildren(scroll(`Values: ${this.caption}`, table(this.caption, this.columns, this.rows)));
  }

  saveSvg() {
    const svg = this.drawing.querySelector("svg");
    const legend = [...this.legend.children].map((entry) => ({
      words: entry.textContent,
      colour: getComputedStyle(entry.firstChild).getPropertyValue("--swatch").trim(),
    }));
    if (svg) save(`${this.file}.svg`, "image/svg+xml", svgOf(svg, this.title, legend));
  }

  saveCsv() {
    if (this.columns) save(`${this.file}.csv`, "text/csv", csvOf(this.columns, this.rows));
  }
}

/** One entry of a legend: a swatch with its words. `kind` is line, box, dot or diamond. */
export function key(words, colour, kind = "box", dash) {
  const swatch = el("span", { class: `swatch ${kind}`, "aria-hidden": "true" });
  swatch.style.setProperty("--swatch", colour);
  if (dash) swatch.classList.add("dashed");
  return el("span", { class: "key" }, swatch, words);
}
