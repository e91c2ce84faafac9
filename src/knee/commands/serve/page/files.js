// Downloads that the page makes itself, and the clipboard.

import { announce, el, svgEl } from "./dom.js";

const PAINTED = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-opacity",
  "stroke-linecap",
  "stroke-linejoin",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
  "dominant-baseline",
  "paint-order",
  "visibility",
  "vector-effect",
];

/** Offers text as a file. */
export function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
  announce(`${name} was saved.`);
}

const cell = (value) => {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

/** Rows as CSV with plain numbers in base units; a column gives `raw(row)`, or has the name of a field. */
export function csvOf(columns, rows) {
  const named = columns.map((column) => column.key ?? column.title);
  const raw = (column, row) => (column.raw ? column.raw(row) : row[column.key]);
  return (
    [named, ...rows.map((row) => columns.map((column) => raw(column, row)))]
      .map((line) => line.map(cell).join(","))
      .join("\n") + "\n"
  );
}

/**
 * A chart as a file of its own: every colour and font that the page's style gives it is written into it, and its title and
 * legend, which the page has beside it, are drawn above it.
 */
export function svgOf(svg, title = "", legend = []) {
  const copy = svg.cloneNode(true);
  const from = [svg, ...svg.querySelectorAll("*")],
    to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element),
      parent = i ? getComputedStyle(element.parentElement) : null;
    for (const name of PAINTED) {
      const value = style.getPropertyValue(name);
      const own = element.hasAttribute(name) || !parent || value !== parent.getPropertyValue(name);
      if (value && own) to[i].setAttribute(name, value);
    }
    for (const name of ["style", "class", "tabindex", "role", "aria-describedby"]) to[i].removeAttribute(name);
  });
  const { width, height } = svg.getBoundingClientRect(),
    ink = getComputedStyle(document.body).color;
  const text = (words, x, y, more = {}) =>
    svgEl("text", { x, y, fill: ink, "font-size": 12, "text-anchor": "start", ...more }, words);
  const above = [text(title, 0, 0, { "font-size": 15, "font-weight": 600 })];
  let x = 0,
    y = 20;
  for (const { words, colour } of legend) {
    const wide = 30 + 6.6 * words.length;
    if (x + wide > width && x > 0) [x, y] = [0, y + 18];
    above.push(svgEl("rect", { x, y: y - 9, width: 14, height: 10, fill: colour }), text(words, x + 20, y));
    x += wide;
  }
  const top = y + 28,
    pad = 16;
  above.forEach((element) => element.setAttribute("transform", `translate(0 ${-top + 8})`));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute(
    "viewBox",
    `${-pad} ${-top - pad} ${Math.ceil(width) + 2 * pad} ${Math.ceil(height) + top + 2 * pad}`,
  );
  copy.setAttribute("width", Math.ceil(width) + 2 * pad);
  copy.setAttribute("height", Math.ceil(height) + top + 2 * pad);
  copy.prepend(
    svgEl("rect", {
      x: -pad,
      y: -top - pad,
      width: "200%",
      height: "200%",
      fill: getComputedStyle(document.body).backgroundColor,
    }),
  );
  copy.append(...above);
  return new XMLSerializer().serializeToString(copy);
}

/** To the clipboard; where a browser forbids it, the text is selected to be copied by hand. */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    announce(`${what} was copied.`);
    return true;
  } catch {
    announce(`${what} could not be copied; it is shown, ready to be selected.`);
    return false;
  }
}
