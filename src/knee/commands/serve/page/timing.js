// How long a change of a control takes until its new charts are on the screen. `window.knee_timings` keeps each one.

window.knee_timings = [];
const most = 2000;

/** Called when a control changes: the moment that the person acted, as the browser saw it. */
export const changed = (event) => (event && event.timeStamp > 0 ? event.timeStamp : performance.now());

/** Called after the charts were drawn; counts until the frame with them was handed to the screen. */
export function drawn(view, startedAt, parts = {}) {
  if (startedAt === undefined) return;
  const scripted = performance.now();
  requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => {
      const end = performance.now();
      window.knee_timings.push({ view, ms: end - startedAt, scripted_ms: scripted - startedAt, ...parts });
      if (window.knee_timings.length > most) window.knee_timings.shift();
      performance.measure(`knee ${view}`, { start: startedAt, end });
    };
    channel.port2.postMessage(null);
  });
}
