// The formulas, constants and sources behind a number, in a dialog.

import { post } from "./api.js";
import { byId, el } from "./dom.js";

const dialog = byId("why");
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});

/** `numbers` are names of the chain (step_s, mfu_frac, communication, ...); `question` is the body of the view. */
export async function showWhy(title, numbers, question) {
  const body = el("div", {}, el("p", { class: "small" }, "Reading the chain of formulas."));
  dialog.replaceChildren(
    el(
      "header",
      {},
      el("h2", { id: "why-title" }, `Why ${title}`),
      el("button", { type: "button", onclick: () => dialog.close() }, "Close"),
    ),
    body,
  );
  dialog.showModal();
  try {
    const chain = (await post("/api/why", question)).lines;
    const lines = numbers.flatMap((number) => explained(chain, number));
    const sources = lines.filter((line) => line.source);
    body.replaceChildren(
      el(
        "ul",
        { class: "chain" },
        lines.filter((line) => !line.source).map((line) => chained(line)),
      ),
      sources.length ? el("h3", {}, `Constants and their sources (${sources.length})`) : "",
      el(
        "ul",
        { class: "chain sources" },
        sources.map((line) => chained(line)),
      ),
    );
  } catch (error) {
    body.replaceChildren(el("p", {}, error.message), el("p", { class: "small" }, error.hint ?? ""));
  }
}

/** The line of a number with those that explain it, which are deeper. */
function explained(chain, number) {
  const at = chain.findIndex((line) => line.name === number);
  if (at < 0) return [];
  const end = chain.findIndex((line, i) => i > at && line.depth <= chain[at].depth);
  return chain.slice(at, end < 0 ? chain.length : end);
}

function chained(line) {
  const [kind, ...rest] = line.source.split(": ");
  return el(
    "li",
    { class: `depth-${Math.min(line.depth, 3)}` },
    el("span", { class: "chain-name" }, line.name),
    el("strong", {}, line.value),
    line.formula ? el("span", { class: "formula" }, line.formula) : null,
    line.source ? el("span", { class: "source" }, el("span", { class: "kind" }, kind), rest.join(": ")) : null,
  );
}
