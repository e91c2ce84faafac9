// Zooming into timelines. Without this script each is drawn whole, and that is all.
for (const root of document.querySelectorAll(".timeline")) {
  const data = JSON.parse(root.querySelector("script").textContent);
  const plot = root.querySelector(".plot"), axis = root.querySelector(".axis"), said = root.querySelector("output");
  const box = root.querySelector(".box"), WIDE = 1000, SHORTEST = 1000 / data.unit;
  const paths = data.looks.map((look) => plot.querySelector(`path.${look}`)), mark = plot.querySelector("path.chosen");
  const spans = data.spans.map(([row, at, length, look, kind]) => ({ row, at, length, look, kind }));
  const order = data.order;
  let from = 0, to = data.total, chosen = -1;

  const ms = (ticks, digits) => ((ticks * data.unit) / 1e6).toLocaleString("en",
    { minimumFractionDigits: digits, maximumFractionDigits: digits });

  function draw() {
    const scale = WIDE / (to - from), place = (at) => Math.min(1100, Math.max(-100, (at - from) * scale));
    const box = ({ row, at, length, look }) => {
      const x = place(at), wide = Math.max(place(at + length) - x, 0.01);  // without a width nothing is drawn
      const inset = data.insets[look], high = data.high - 2 * inset;
      return `M${x.toFixed(2)} ${row * data.high + inset}h${wide.toFixed(2)}v${high}h${-wide.toFixed(2)}z`;
    };
    const drawn = paths.map(() => []);
    for (const span of spans) if (span.at + span.length >= from && span.at <= to) drawn[span.look].push(box(span));
    paths.forEach((path, look) => path && path.setAttribute("d", drawn[look].join("")));
    mark.setAttribute("d", chosen >= 0 ? box(spans[chosen]) : "");
    const many = Math.max(2, Math.min(6, Math.floor(plot.clientWidth / 90)));  // as words have room
    const rough = (to - from) / many, ten = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * ten).find((k) => k >= rough);
    const digits = Math.max(0, Math.min(6, 6 - Math.floor(Math.log10(step * data.unit))));
    axis.replaceChildren();
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const tick = document.createElement("span");
      tick.textContent = ms(at, digits) + " ms";
      tick.style.left = (100 * (at - from)) / (to - from) + "%";
      axis.append(tick);
      if (tick.offsetLeft + tick.offsetWidth <= axis.clientWidth) continue;
      tick.className = "last";  // its words stand before it, where they have room
      const before = tick.previousElementSibling;
      if (before && before.offsetLeft + before.offsetWidth > tick.offsetLeft - tick.offsetWidth) tick.remove();
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
    chosen = number;
    const { row, at, length, kind } = spans[number], place = order.indexOf(number);
    said.textContent = (place >= 0 ? `${place + 1} of ${order.length}: ` : "") +
      `${data.rows[row]}, ${ms(length, 3)} ms${data.verb} at ${ms(at, 3)} ms. ${data.kinds[kind]}`;
    if (centre) view(at - 2 * length, at + 3 * length);
    else draw();
  }
  function turn(by) {
    if (!order.length) return;
    const place = order.indexOf(chosen);
    choose(order[((place < 0 && by < 0 ? 0 : place) + by + order.length) % order.length], true);
  }

  const acts = {
    in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.3), right: () => pan(0.3), all: () => view(0, data.total),
    next: () => turn(1), previous: () => turn(-1),
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
  function nearest(event) {
    const place = plot.getBoundingClientRect(), at = time(event), near = (3 * (to - from)) / place.width;
    const row = Math.floor((event.clientY - place.top) / data.high);
    let found = -1, least = near;
    spans.forEach((span, number) => {
      const off = Math.max(span.at - at, at - span.at - span.length, 0);
      if (span.kind >= 0 && span.row === row && off < least) [found, least] = [number, off];
    });
    return found;
  }
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
