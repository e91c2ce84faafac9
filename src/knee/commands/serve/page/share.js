// Presets, comparing, and everything by which a state leaves the page: address, command, Python, files.

import { postForText } from "./api.js";
import { byId, el } from "./dom.js";
import { copy, save } from "./files.js";

export class Sharing {
  constructor(app) {
    this.app = app;
    this.dialog = byId("share");
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
    byId("open-share").addEventListener("click", () => this.open());
    byId("pin").addEventListener("click", () => this.pin());
    this.presets();
  }

  presets() {
    const select = byId("presets"),
      { presets } = this.app.catalog;
    const groups = d3.groups(presets, (preset) => preset.kind);
    for (const [kind, own] of groups) {
      select.append(
        el(
          "optgroup",
          { label: kind === "paper" ? "The paper's experiments" : "Beyond the paper" },
          own.map((preset) =>
            el(
              "option",
              { value: preset.study },
              [preset.place.split(",")[0], preset.title].filter(Boolean).join(": "),
            ),
          ),
        ),
      );
    }
    select.addEventListener("change", () => {
      const preset = presets.find((one) => one.study === select.value);
      if (preset) this.app.state.replaceAll(preset.address.replace(/^.*\?/, ""));
      select.value = "";
    });
  }

  /** The state as it is now becomes A; changes from then on are B. */
  pin() {
    const { state } = this.app,
      kept = { ...state.values };
    for (const name of ["compare", "view", "zoom"]) delete kept[name];
    state.set({ compare: state.isSet("compare") ? null : state.query(kept) || "view=step" });
  }

  open() {
    this.app.state.flush();
    const { last, state } = this.app,
      view = state.get("view");
    const offer = (title, what, act) => el("button", { type: "button", onclick: act }, title, el("small", {}, what));
    const said = el("p", { class: "small", role: "status" });
    const copied = (text, what) => async () => {
      said.textContent = (await copy(text, what))
        ? `${what} was copied.`
        : "This browser does not allow copying; select the text below.";
    };
    const figure = () =>
      [...document.querySelectorAll("#panel figure.chart")]
        .map((element) => element.querySelector(".drawing").figure)
        .find((one) => one.columns && one.draw);
    this.dialog.replaceChildren(
      el(
        "header",
        {},
        el("h2", { id: "share-title" }, "Share this view"),
        el("button", { type: "button", onclick: () => this.dialog.close() }, "Close"),
      ),
      el(
        "div",
        { class: "offers" },
        offer("Copy address", "opens the explorer in this state", copied(location.href, "The address")),
        last?.command
          ? offer("Copy as command", "the same answer in a terminal", copied(last.command, "The command"))
          : null,
        last?.python
          ? offer("Copy as Python", "the same answer in a script", copied(last.python, "The Python code"))
          : null,
        offer("Job file (TOML)", "for knee simulate, plan, train", () =>
          this.attempt(said, async () =>
            save("knee-job.toml", "application/toml", await postForText("/api/toml", state.question())),
          ),
        ),
        offer("Values (CSV)", "of this view's first chart", () => figure()?.saveCsv()),
        offer("Chart (SVG)", "this view's first chart", () => figure()?.saveSvg()),
        offer("Page (HTML)", "this view as one file that needs no server", () =>
          this.attempt(said, () => this.saveHtml(view)),
        ),
      ),
      said,
      el("h3", {}, "Address"),
      el("pre", { tabindex: 0 }, location.href),
      last?.command ? el("h3", {}, "Command") : "",
      last?.command ? el("pre", { tabindex: 0 }, last.command) : "",
      last?.python ? el("h3", {}, "Python") : "",
      last?.python ? el("pre", { tabindex: 0 }, last.python.trim()) : "",
    );
    this.dialog.showModal();
  }

  async attempt(said, act) {
    try {
      await act();
    } catch (error) {
      said.textContent = [error.message, error.hint].filter(Boolean).join(" ");
    }
  }

  async saveHtml(view) {
    const { standalone } = await import("./standalone.js");
    save(`knee-${view}.html`, "text/html", await standalone(this.app));
  }
}
