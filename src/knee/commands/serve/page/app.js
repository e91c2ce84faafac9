// The page: reads the catalogue, keeps the state, and asks and draws the view that is open.

import { get, Latest, startSession } from "./api.js";
import { Question } from "./controls.js";
import { announce, byId, el } from "./dom.js";
import { count } from "./format.js";
import { setMetrics } from "./metrics.js";
import { State, VIEWS } from "./state.js";
import { StepView } from "./step.js";
import { ScaleView } from "./scale.js";
import { PlanView } from "./plan.js";
import { BudgetView } from "./budget.js";
import { Sharing } from "./share.js";
import { Files } from "./drop.js";
import { drawn } from "./timing.js";
import { showTrust } from "./trust.js";

const VIEW = { step: StepView, scale: ScaleView, plan: PlanView, budget: BudgetView };

class App {
  constructor(catalog) {
    this.catalog = catalog;
    setMetrics(catalog.metrics);
    this.state = new State(catalog, (change) => this.changed(change));
    this.question = new Question(byId("question"), this.state, catalog);
    this.panel = byId("panel");
    this.last = null; // what the last answer says: trust, command, python
    this.sharing = new Sharing(this);
    this.files = new Files(this);
    this.prepareTabs();
    this.prepareFold();
    byId("about").textContent =
      `knee ${catalog.version}. Everything is computed on this machine; the page loads nothing from other hosts.`;
    this.open(performance.now());
  }

  /** Anything in the state changed, by a control or by the browser's Back. */
  changed({ startedAt, names, quiet }) {
    if (quiet) return;
    this.question.show();
    this.entitle();
    if (this.state.get("view") !== this.view || names === null || names.includes("compare")) this.open(startedAt);
    else this.panes.forEach((pane) => pane.pinned || this.ask(pane, startedAt));
  }

  /** Tabs and histories of browsers show it. */
  entitle() {
    const what =
      this.state.get("view") === "budget" ? "Budget" : `${this.state.get("model")}, ${this.state.get("view")}`;
    document.title = `${what}, ${count(Number(this.state.get("gpus")))} GPUs of ${this.state.get("cluster")} – knee explorer`;
  }

  /** The view of the state, alone or as two panes. */
  open(startedAt) {
    this.panes?.forEach((pane) => pane.close());
    this.view = this.state.get("view");
    const pinned = this.state.pinned();
    this.panes = [pinned && this.pane(pinned), this.pane(null)].filter(Boolean);
    this.panel.setAttribute("aria-labelledby", `tab-${this.view}`);
    this.panel.classList.toggle("compared", this.panes.length > 1);
    this.panel.replaceChildren(...this.panes.map((pane) => pane.element));
    for (const tab of byId("tabs").children) {
      const chosen = tab.dataset.view === this.view;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    }
    this.entitle();
    byId("pin").textContent = pinned ? "Stop comparing" : "Compare";
    this.question.show();
    if (this.panes[0].view.search)
      byId("trust").replaceChildren(el("span", { class: "small" }, "The search's answer says how far to trust it."));
    this.panes.forEach((pane) => this.ask(pane, startedAt));
  }

  /** A view for the page's state, or for the pinned one. */
  pane(pinned) {
    const view = new VIEW[this.view](this, { pinned: Boolean(pinned) });
    const pane = {
      view,
      pinned,
      answer: null,
      values: () => (pinned ? { ...pinned, view: this.view, metric: this.state.get("metric") } : this.state.values),
    };
    pane.latest = new Latest(
      ({ values, startedAt }, signal) => this.answer(pane, values, startedAt, signal),
      view.patience,
      () => this.panel.setAttribute("aria-busy", String(this.panes.some((one) => one.latest.running))),
    );
    pane.close = () => {
      pane.latest.stop();
      view.close?.();
    };
    const compared = this.state.pinned() !== null;
    pane.element = compared
      ? el(
          "section",
          { class: "pane", "aria-label": pinned ? "State A" : "State B" },
          el("h2", { class: "pane-title" }, el("span", { class: "letter" }, pinned ? "A" : "B"), this.paneWords(pane)),
          view.element,
        )
      : el("div", {}, view.element);
    return pane;
  }

  /** A state in words: the job, and what the two states differ in. */
  paneWords(pane) {
    const values = pane.values(),
      [model, cluster, gpus] = ["model", "cluster", "gpus"].map((name) => this.state.get(name, values));
    const pinned = this.state.pinned() ?? {},
      skipped = ["view", "compare", "zoom", "metric", "model", "cluster", "gpus"];
    const names = [...new Set([...Object.keys(pinned), ...Object.keys(this.state.values)])].filter(
      (name) => !skipped.includes(name) && pinned[name] !== this.state.values[name],
    );
    const different = names.map((name) => `${name} ${this.state.get(name, values) || "auto"}`);
    return [`${model} on ${count(Number(gpus))} GPUs of ${cluster}`, ...different].join(", ");
  }

  ask(pane, startedAt) {
    const title = pane.element.querySelector(".pane-title");
    if (title) title.lastChild.textContent = this.paneWords(pane);
    this.panel.setAttribute("aria-busy", "true");
    pane.latest.run({ values: pane.values(), startedAt });
  }

  async answer(pane, values, startedAt, signal) {
    const dimmed = pane.view.grid ?? pane.element; // a search shows what it finds while it runs
    const slow = setTimeout(() => dimmed.classList.add("stale"), 300);
    try {
      const answer = await pane.view.ask(values, signal);
      const received = performance.now();
      if (!this.panes.includes(pane) || answer === null) return;
      pane.answer = answer;
      this.draw(pane, values);
      drawn(this.view, startedAt, { answer_ms: received - startedAt });
    } catch (error) {
      if (error.name !== "AbortError" && this.panes.includes(pane)) this.failed(pane, error);
    } finally {
      clearTimeout(slow);
      if (!signal.aborted) dimmed.classList.toggle("stale", this.failing === pane);
    }
  }

  /** Two states have the same scales, and the second says how it differs from the first. */
  draw(pane, values) {
    const own = this.panes.find((one) => !one.pinned),
      first = this.panes.find((one) => one.pinned);
    const shown = (one, at) =>
      one.view.show(one.answer, at, one.pinned ? null : first?.answer, (one.pinned ? own : first)?.answer);
    const says = shown(pane, values);
    if (first?.answer && own.answer) {
      const other = pane.pinned ? own : first;
      const now = shown(other, other.values());
      this.says(pane.pinned ? now : says);
    } else if (!pane.pinned) this.says(says);
  }

  /** A view has learned more than its answer said. */
  redraw(view) {
    const pane = this.panes.find((one) => one.view === view);
    if (pane?.answer) this.draw(pane, pane.values());
  }

  /** What the open view's newest answer says; views that search call it as they learn more. */
  says({ trust, point, command, python, says, trustOf }) {
    this.failing = null;
    byId("problem").replaceChildren();
    this.question.problem(null);
    this.last = { trust, command, python };
    const experts =
      this.catalog.models.find((model) => model.name === this.state.get("model"))?.experts && this.view !== "budget";
    showTrust(byId("trust"), trust, trustOf, this.catalog.sources[experts ? "experts" : "dense"]);
    if (point !== undefined) this.question.show(point);
    if (says) announce(says);
  }

  failed(pane, error) {
    this.failing = pane;
    const busy = error.status === 429 || error.status === 503;
    const message =
      error.status === undefined ? "The server does not answer. Is `knee serve` still running?" : error.message;
    byId("problem").replaceChildren(
      el(
        "p",
        {},
        el("strong", {}, message.charAt(0).toUpperCase() + message.slice(1)),
        error.hint ? ` ${error.hint}` : "",
      ),
      busy || error.status === undefined
        ? el("button", { type: "button", onclick: () => this.ask(pane, performance.now()) }, "Try again")
        : "",
    );
    if (!pane.pinned) this.question.problem(error);
  }

  prepareTabs() {
    const tabs = [...byId("tabs").children];
    for (const tab of tabs) {
      tab.addEventListener("click", (event) =>
        this.state.set({ view: tab.dataset.view }, { startedAt: event.timeStamp }),
      );
      tab.addEventListener("keydown", (event) => {
        const at = VIEWS.indexOf(tab.dataset.view);
        const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        const next = tabs[(to + tabs.length) % tabs.length];
        next.focus();
        next.click();
      });
    }
  }

  /** The question is beside the answer on wide screens, and folded above it on narrow ones. */
  prepareFold() {
    const wide = matchMedia("(min-width: 64.01rem)"),
      fold = byId("question-fold");
    const fit = () => {
      fold.open = wide.matches;
    };
    wide.addEventListener("change", fit);
    fit();
  }
}

try {
  await startSession();
  window.knee_app = new App(await get("/api/catalog"));
} catch (error) {
  byId("panel").replaceChildren(el("p", {}, error.message), el("p", { class: "small" }, error.hint ?? ""));
  throw error;
}
