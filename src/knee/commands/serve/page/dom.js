// Elements without HTML text: what comes from a file or a name is always text, so nothing in it can run.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** `el("p", {class: "small", onclick: f}, "text", child)`. */
export const el = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

export const svgEl = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

/** Replaces what an element holds; what is missing is left out. */
export const fill = (element, ...children) =>
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));

let ids = 0;
/** A name for an element that labels another; two views can be on the page at once. */
export const uid = (word) => `${word}-${ids++}`;

/** The element of that id, of whatever kind index.html says. @type {(id: string) => any} */
export const byId = (id) => document.getElementById(id);

/** Size or place by script: the content security policy forbids style attributes in HTML, not these. */
export function styled(element, styles) {
  for (const [name, value] of Object.entries(styles)) element.style.setProperty(name, value);
  return element;
}

/**
 * A table with a caption.
 * @param {string | Node} caption
 * @param {Column[]} columns
 * @param {any[]} rows
 * @param {{rowAttributes?: (row: any) => object, head?: (column: Column) => any}} [options]
 */
export function table(caption, columns, rows, { rowAttributes = () => ({}), head = (column) => column.title } = {}) {
  const cell = (column, row, first) =>
    el(
      first ? "th" : "td",
      { class: column.number ? "number" : undefined, scope: first ? "row" : undefined },
      column.show(row),
    );
  return el(
    "table",
    {},
    el("caption", {}, caption),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        columns.map((column) =>
          el(
            "th",
            { scope: "col", class: column.number ? "number" : undefined, "aria-sort": column.sorted },
            head(column),
          ),
        ),
      ),
    ),
    el(
      "tbody",
      {},
      rows.map((row) =>
        el(
          "tr",
          rowAttributes(row),
          columns.map((column, i) => cell(column, row, i === 0)),
        ),
      ),
    ),
  );
}

/** A part that scrolls sideways by keyboard too. */
export const scroll = (label, ...children) =>
  el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, ...children);

/** The values behind a chart, closed until asked for. */
export function details(summary, ...children) {
  return el("details", {}, el("summary", {}, summary), ...children);
}

/** Sentences behind a summary; it stays open while they change. */
export function notes(place, title, sentences) {
  const fold = details(
    `${title} (${sentences.length})`,
    el(
      "ul",
      { class: "small" },
      sentences.map((sentence) => el("li", {}, sentence)),
    ),
  );
  fold.open = place.querySelector("details")?.open ?? false;
  place.replaceChildren(fold);
}

let announced = 0;
/** Says something to screen readers; the last of many in a short time. */
export function announce(words) {
  clearTimeout(announced);
  announced = setTimeout(() => {
    byId("said").textContent = words;
  }, 400);
}
