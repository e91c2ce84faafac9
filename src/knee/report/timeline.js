// Zooming into the exposed stretches. Without this script the whole window is drawn, and that is all.
for (const root of document.querySelectorAll(".timeline")) {
  const data = JSON.parse(root.querySelector("script").textContent);
  const plot = root.querySelector(".plot"), axis = root.querySelector(".axis"), said = root.querySelector("output");
  const box = root.querySelector(".box"), WIDE = 1000, SHORTEST = 1000;
  const moving = [...plot.querySelectorAll("[data-at]")].map((shape) => {
    const [at, length] = shape.dataset.at.split(" ").map(Number);
    return { shape, at, length };
  });
  const spans = moving.filter((one) => one.shape.classList.contains("span"));
  let from = 0, to = data.total, chosen = -1;

  const ms = (ns, step) => (ns / 1e6).toLocaleString("en", { minimumFractionDigits: step, maximumFractionDigits: step });

  function draw() {
    const scale = WIDE / (to - from), place = (ns) => Math.min(1100, Math.max(-100, (ns - from) * scale));
    for (const { shape, at, length } of moving) {
      shape.style.display = at + length < from || at > to ? "none" : "";
      const x = place(at), end = place(at + length);
      shape.setAttribute("x", x);
      shape.setAttribute("width", Math.max(end - x, 0.01));  // without a width nothing is drawn
    }
    const rough = (to - from) / (plot.clientWidth < 500 ? 3 : 6), ten = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * ten).find((k) => k >= rough);
    const digits = Math.max(0, Math.min(6, 6 - Math.floor(Math.log10(step))));
    axis.replaceChildren();
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const tick = document.createElement("span");
      tick.textContent = ms(at, digits) + " ms";
      tick.style.left = (100 * (at - from)) / (to - from) + "%";
      axis.append(tick);
    }
  }

  function view(start, end) {
    const wide = Math.min(data.total, Math.max(SHORTEST, end - start));
    from = Math.min(Math.max(0, (start + end) / 2 - wide / 2), data.total - wide);
    to = from + wide;
    draw();
  }
  const zoom = (by, around = (from + to) / 2) => view(around - (around - from) * by, around + (to - around) * by);
  const pan = (by) => view(from + by * (to - from), to + by * (to - from));

  function choose(number, centre) {
    if (!spans.length) return;
    if (chosen >= 0) spans[chosen].shape.classList.remove("chosen");
    chosen = (number + spans.length) % spans.length;
    const { shape, at, length } = spans[chosen], [row, kind] = data.spans[chosen];
    shape.classList.add("chosen");
    said.textContent = `${chosen + 1} of ${spans.length}: ${data.rows[row]}, ${ms(length, 3)} ms exposed at ` +
      `${ms(at, 3)} ms. ${data.kinds[kind]}`;
    if (centre) view(at - 2 * length, at + 3 * length);
  }

  const acts = {
    in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.3), right: () => pan(0.3), all: () => view(0, data.total),
    next: () => choose(chosen + 1, true), previous: () => choose(Math.max(chosen, 0) - 1, true),
  };
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all", Escape: "all",
    n: "next", p: "previous" };
  for (const button of root.querySelectorAll("button")) button.addEventListener("click", () => acts[button.name]());
  root.querySelector(".tools").hidden = false;
  plot.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    acts[keys[event.key]]();
  });

  const time = (event) => {
    const place = plot.getBoundingClientRect();
    return from + ((event.clientX - place.left) / place.width) * (to - from);
  };
  plot.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;  // a plain wheel scrolls the page
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, time(event));
  }, { passive: false });

  let held = null;
  const nearest = (event) => spans.findIndex((one) => one.shape === event.target);
  plot.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    held = { at: time(event), x: event.clientX, touch: event.pointerType === "touch", from, to, hit: nearest(event) };
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    if (!held) {
      const hit = nearest(event);
      if (hit >= 0 && hit !== chosen) choose(hit, false);
      return;
    }
    const place = plot.getBoundingClientRect();
    if (held.touch) {
      const moved = ((held.x - event.clientX) / place.width) * (held.to - held.from);
      view(held.from + moved, held.to + moved);
      return;
    }
    const [left, right] = [held.x, event.clientX].map((x) => x - place.left).sort((a, b) => a - b);
    box.hidden = right - left < 4;
    box.style.left = `${left}px`;
    box.style.width = `${right - left}px`;
  });
  plot.addEventListener("pointerup", (event) => {
    if (!held) return;
    const moved = Math.abs(event.clientX - held.x), [start, end] = [held.at, time(event)].sort((a, b) => a - b);
    if (moved < 4 && held.hit >= 0) choose(held.hit, false);
    else if (moved >= 4 && !held.touch) view(start, end);
    held = null;
    box.hidden = true;
  });
  plot.addEventListener("pointercancel", () => { held = null; box.hidden = true; });
  addEventListener("resize", draw);
  draw();
}
