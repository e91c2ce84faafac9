// A search that the server runs: its events, its progress bar, and how it is cancelled.

import { events } from "./api.js";
import { el, uid } from "./dom.js";
import { plain, count } from "./format.js";

/** Draws a search while it runs. `heard(name, data)` gets every event; start() answers with the data of `done`. */
export class Search {
  constructor(heard) {
    const label = uid("search");
    this.heard = heard;
    this.controller = null;
    this.bar = el("progress", { max: 1, value: 0, "aria-labelledby": label });
    this.words = el("span", { id: label, class: "small" }, "");
    this.cancelButton = el("button", { type: "button", onclick: () => this.cancel() }, "Cancel");
    this.element = el("div", { class: "search", hidden: true }, this.bar, this.words, this.cancelButton);
  }

  get running() {
    return this.controller !== null;
  }

  cancel() {
    this.controller?.abort();
  }

  async start(body, signal) {
    this.cancel();
    const controller = (this.controller = new AbortController());
    signal?.addEventListener("abort", () => controller.abort());
    this.element.hidden = false;
    this.bar.removeAttribute("value");
    this.words.textContent = "Starting.";
    let done = null;
    try {
      await events(
        "/api/searches",
        body,
        (name, data) => {
          if (name === "queued")
            this.words.textContent = data.ahead
              ? `Waiting: ${count(data.ahead)} searches are ahead.`
              : "Waiting for a free process.";
          if (name === "progress") this.progress(data);
          if (name === "error") throw Object.assign(new Error(data.error.message), { status: 422, ...data.error });
          if (name === "done") done = data;
          this.heard(name, data);
        },
        controller.signal,
      );
      if (done === null)
        throw Object.assign(new Error("the search ended without an answer"), { status: 500, hint: "Search again." });
      return done;
    } finally {
      if (this.controller === controller) {
        this.controller = null;
        this.element.hidden = true;
      }
    }
  }

  progress({ done, total, seconds, what }) {
    if (total) {
      this.bar.max = total;
      this.bar.value = done;
    }
    this.words.textContent = [
      what,
      total ? `${plain((100 * done) / total, 2)}%` : "",
      seconds !== undefined ? `${plain(seconds, 2)} s` : "",
    ]
      .filter(Boolean)
      .join(", ");
  }
}
