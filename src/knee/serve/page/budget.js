import { el } from "./dom.js";
export class BudgetView { constructor() { this.element = el("p", {}, "…"); } async ask() { return null; } show() { return {}; } }
