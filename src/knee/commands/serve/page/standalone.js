// The view as one HTML file that opens without a server: charts as they are drawn, every table open to be read, no script.

import { byId } from "./dom.js";

const LEFT_OUT =
  ".tools, .adder, .search, button.plain[aria-label^='Remove'], .timeline-box, .timeline-tools, input, datalist, select, .segments, .bench, .help";

/** Rules of the page's own style sheets, in one piece. */
function style() {
  return [...document.styleSheets]
    .filter((sheet) => sheet.href?.startsWith(location.origin))
    .flatMap((sheet) => [...sheet.cssRules].map((rule) => rule.cssText))
    .join("\n");
}

const escaped = (text) =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

export async function standalone(app) {
  const folds = [.../** @type {NodeListOf<HTMLDetailsElement>} */ (document.querySelectorAll("#panel details"))].filter((fold) => !fold.open);
  for (const fold of folds) {
    // their tables are made when they open
    fold.open = true;
    fold.querySelector(":scope > div")?.closest("figure")?.querySelector(".drawing")?.figure?.fill();
  }
  await new Promise((resolve) => requestAnimationFrame(resolve));
  const copy = byId("panel").cloneNode(true),
    trust = byId("trust").cloneNode(true);
  for (const fold of folds) fold.open = false;
  for (const part of [copy, trust]) {
    part.querySelectorAll(LEFT_OUT).forEach((element) => element.remove());
    part.querySelectorAll("details").forEach((fold) => fold.setAttribute("open", ""));
    part.querySelectorAll("button").forEach((button) => {
      // numbers and plans stay, what they did does not
      const plain = document.createElement(button.classList.contains("tile") ? "div" : "span");
      plain.className = button.className;
      plain.append(...button.childNodes);
      button.replaceWith(plain);
    });
    part.querySelectorAll("[tabindex]:not(.scroll)").forEach((element) => element.removeAttribute("tabindex"));
    part.querySelectorAll("[hidden]").forEach((element) => element.remove());
  }
  for (const name of ["role", "aria-labelledby", "tabindex"]) copy.removeAttribute(name);
  const { command, python } = app.last ?? {},
    title = document.title;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>${escaped(title)}</title>
<style>
${style().replaceAll("</style", "<\\/style")}
</style>
</head>
<body>
<header class="top"><div class="brand"><h1>${escaped(title.replace(" – knee explorer", ""))}</h1><p class="lead">${escaped(app.question.sentence())}; ${escaped(app.question.chosen?.words ?? "")}</p></div></header>
<main>
<section aria-label="Trust" id="trust">${trust.innerHTML}</section>
${copy.outerHTML}
</main>
<footer><h2>The same answer</h2>
${command ? `<pre>${escaped(command)}</pre>` : ""}
${python ? `<pre>${escaped(python)}</pre>` : ""}
<p class="small">knee ${escaped(app.catalog.version)} explorer, state <code>${escaped(app.state.address())}</code></p></footer>
</body>
</html>
`;
}
