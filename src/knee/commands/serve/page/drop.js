// Files that a person opens or drops: records, tables of runs, the files of a sweep, traces. They are read by the server on
// this machine, held beside their simulation, and forgotten when the page is closed.

import { get, post } from "./api.js";
import { announce, byId, el, fill, scroll, table } from "./dom.js";
import { bytes, count, counted, percent, seconds } from "./format.js";
import { label, show } from "./metrics.js";

const MOST_FILES = 200;

export class Files {
  constructor(app) {
    this.app = app;
    this.place = byId("dropped");
    const veil = byId("veil"),
      picker = byId("files");
    byId("open-files").addEventListener("click", () => this.offer(picker));
    picker.addEventListener("change", () => {
      this.read([...picker.files].map((file) => ({ file, path: file.webkitRelativePath || file.name })));
      picker.value = "";
    });
    let depth = 0;
    addEventListener("dragenter", (event) => {
      if (![...event.dataTransfer.types].includes("Files")) return;
      depth += 1;
      veil.hidden = false;
    });
    addEventListener("dragleave", () => {
      depth = Math.max(0, depth - 1);
      veil.hidden = depth === 0;
    });
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", async (event) => {
      event.preventDefault();
      depth = 0;
      veil.hidden = true;
      const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
      const found = (await Promise.all(entries.map((entry) => filesOf(entry)))).flat();
      this.read(found.length ? found : [...event.dataTransfer.files].map((file) => ({ file, path: file.name })));
    });
  }

  /** Where the server was given a folder of records or a study, they can be opened too. */
  async offer(picker) {
    const { records, study } = await get("/api/status");
    if (!records && !study) {
      picker.click();
      return;
    }
    const found = records ? (await get("/api/records")).records : [];
    const open = async (name) => {
      try {
        this.show(
          [{ path: name, ...(await get(`/api/records/${name.split("/").map(encodeURIComponent).join("/")}`)) }],
          [],
          0,
        );
      } catch (error) {
        this.show([], [{ path: name, message: [error.message, error.hint].filter(Boolean).join(" ") }], 0);
      }
    };
    this.place.hidden = false;
    fill(
      this.place,
      this.heading("Open files"),
      el(
        "p",
        { class: "inline" },
        el("button", { type: "button", onclick: () => picker.click() }, "Choose files on this computer"),
        study ? el("a", { href: "/study/" }, "Page of the study") : null,
      ),
      found.length ? el("h3", {}, `Records of the server's folder (${count(found.length)})`) : null,
      found.length
        ? el(
            "ul",
            { class: "records" },
            found.map(({ name, bytes: size }) =>
              el(
                "li",
                {},
                el("button", { type: "button", class: "plain", onclick: () => open(name) }, name),
                ` ${bytes(size)}`,
              ),
            ),
          )
        : null,
    );
    this.place.querySelector("button").focus();
  }

  heading(title) {
    const close = () => {
      this.place.hidden = true;
      byId("open-files").focus();
    };
    return el(
      "div",
      { class: "heading" },
      el("h2", {}, title),
      el("button", { type: "button", onclick: close }, "Close"),
    );
  }

  async read(files) {
    if (!files.length) return;
    const some = files.slice(0, MOST_FILES),
      shown = [],
      failed = [];
    this.place.hidden = false;
    this.place.replaceChildren(el("p", { class: "small" }, `Reading ${count(some.length)} files on this machine.`));
    for (const { file, path } of some) {
      try {
        shown.push({
          path,
          ...(await post(`/api/read?name=${encodeURIComponent(path)}`, file, { type: "application/octet-stream" })),
        });
      } catch (error) {
        failed.push({ path, message: [error.message, error.hint].filter(Boolean).join(" ") });
      }
    }
    this.show(shown, failed, files.length - some.length);
  }

  async show(shown, failed, left) {
    const rows = shown.flatMap((one) => (one.rows ?? []).map((row) => ({ file: one.path, ...row })));
    const drawnTraces = await Promise.all(shown.filter((one) => one.kind === "trace").map((one) => this.trace(one)));
    const notes = [
      ...shown.flatMap((one) => one.notes ?? []),
      ...rows.filter((row) => row.note).map((row) => `${row.name ?? row.file}: ${row.note}`),
    ];
    fill(
      this.place,
      this.heading("Your files"),
      rows.length
        ? scroll(
            "Measured beside simulated",
            table(
              "Measured beside simulated",
              COLUMNS.filter(
                (column) =>
                  column.always || rows.some((row) => column.of(row) !== undefined && column.of(row) !== null),
              ),
              rows,
            ),
          )
        : "",
      rows.some((row) => row.state)
        ? el(
            "div",
            { class: "inline" },
            rows
              .filter((row) => row.state)
              .slice(0, 6)
              .map((row) =>
                el(
                  "button",
                  { type: "button", onclick: () => this.app.state.replaceAll(row.state) },
                  `Open ${(row.name ?? row.file).split("/").pop()} as a question`,
                ),
              ),
          )
        : "",
      ...drawnTraces,
      failed.length
        ? el(
            "ul",
            {},
            failed.map(({ path, message }) => el("li", {}, el("strong", {}, path), `: ${message}`)),
          )
        : "",
      notes.length
        ? el(
            "ul",
            { class: "small" },
            notes.slice(0, 20).map((note) => el("li", {}, note)),
          )
        : "",
      left > 0 ? el("p", { class: "small" }, `${count(left)} more files were left out.`) : "",
    );
    announce(`${count(shown.length)} files were read, ${count(failed.length)} could not be read.`);
  }

  /**
   * A traced step beside the step of the page's question.
   * @param {{path: string, summary?: any}} file
   */
  async trace({ path, summary = {} }) {
    const simulated = await post("/api/views/step", this.app.state.question()).then(
      ({ measurement }) => measurement,
      () => ({}),
    );
    const rows = PARTS.filter((name) => summary[name] !== undefined).map((name) => ({
      title: label(name),
      trace: summary[name],
      simulated: simulated[name],
    }));
    const share = (value, whole) =>
      value === undefined || value === null ? "–" : `${seconds(value)} (${percent(value / whole)})`;
    const facts = [summary.device, counted(summary.ranks ?? 1, "rank"), counted(summary.steps ?? 0, "step")]
      .filter(Boolean)
      .join(", ");
    return scroll(
      `Trace ${path}`,
      table(
        `${path}: ${facts}, mean of a step, beside the step of this page's question`,
        [
          { title: "part", show: (row) => row.title },
          { title: "traced", number: true, show: (row) => share(row.trace, summary.step_s) },
          { title: "simulated", number: true, show: (row) => share(row.simulated, simulated.step_s) },
        ],
        rows,
      ),
    );
  }
}

const PARTS = ["step_s", "compute_s", "exposed_comm_s", "overlapped_comm_s", "bubble_s", "idle_s"];

const pair = (name) =>
  ["measured", "simulated"].map((kind) => ({
    get title() {
      return `${label(name)}, ${kind}`;
    },
    number: true,
    of: (row) => row[kind]?.[name],
    show: (row) => ((row[kind]?.[name] ?? null) === null ? "–" : show(name, row[kind][name])),
  }));
/** @type {Column[]} */
const COLUMNS = [
  { title: "file", always: true, of: (row) => row.file, show: (row) => row.name ?? row.file },
  ...pair("tokens_per_s_per_gpu"),
  {
    title: "error",
    number: true,
    of: (row) => row.error_frac,
    show: (row) =>
      row.error_frac === undefined || row.error_frac === null
        ? "–"
        : `${row.error_frac > 0 ? "+" : "−"}${percent(Math.abs(row.error_frac))}`,
  },
  ...pair("step_s"),
  ...pair("exposed_comm_s"),
  ...pair("memory_bytes"),
];

/** All files of a dropped folder. */
async function filesOf(entry, path = entry.name) {
  if (entry.isFile) return [{ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), path }];
  const reader = entry.createReader(),
    found = [];
  for (;;) {
    const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!batch.length) return found;
    for (const child of batch)
      if (found.length < MOST_FILES) found.push(...(await filesOf(child, `${path}/${child.name}`)));
  }
}
