// Downloads that the page makes itself, and the clipboard.

import { announce, el } from "./dom.js";

const PAINTED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "stroke-linecap", "stroke-linejoin", "opacity",
  "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline", "paint-order", "visibility", "vector-effect"];

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
  return [named, ...rows.map((row) => columns.map((column) => raw(column, row)))].map((line) => line.map(cell).join(",")).join("\n") + "\n";
}

/** A chart as a file of its own: every colour and font that the page's style gives it is written into it. */
export function svgOf(svg) {
  const copy = svg.cloneNode(true);
  const from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element), parent = i ? getComputedStyle(element.parentElement) : null;
    for (const name of PAINTED) {
      const value = style.getPropertyValue(name);
      const own = element.hasAttribute(name) || !parent || value !== parent.getPropertyValue(name);
      if (value && own) to[i].setAttribute(name, value);
    }
    for (const name of ["style", "class", "tabindex"]) to[i].removeAttribute(name);
  });
  const box = svg.getBoundingClientRect();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  if (!copy.hasAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${Math.round(box.width)} ${Math.round(box.height)}`);
  copy.setAttribute("width", Math.round(box.width));
  copy.setAttribute("height", Math.round(box.height));
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  ground.setAttribute("width", "100%");
  ground.setAttribute("height", "100%");
  ground.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  copy.prepend(ground);
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
