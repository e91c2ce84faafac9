// Numbers as people read them. Everything from the server is in base SI units; words with units are made here.

const formats = Array.from({ length: 21 }, (_, most) => new Intl.NumberFormat("en", { maximumFractionDigits: most })); // making one takes long
const digits = (value, most) => formats[Math.min(20, most)].format(value);

/** Three significant digits, with thousands separators: 8,034 or 12.7 or 0.102. */
export function plain(value, significant = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "unknown";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  return digits(value, Math.max(0, significant - 1 - size));
}

const scaled = (value, scales, significant = 3) => {
  if (value === null || value === undefined || !Number.isFinite(value)) return "unknown";
  const [factor, unit] = scales.find(([least]) => Math.abs(value) >= 0.9995 * least) ?? scales[scales.length - 1];
  return `${plain(value / factor, significant)} ${unit}`;
};

export const seconds = (value) =>
  value === 0
    ? "0 s"
    : scaled(value, [
        [1, "s"],
        [1e-3, "ms"],
        [1e-6, "µs"],
        [1e-9, "ns"],
      ]);
export const bytes = (value) =>
  value === 0
    ? "0 GiB"
    : scaled(value, [
        [2 ** 30, "GiB"],
        [2 ** 20, "MiB"],
        [2 ** 10, "KiB"],
        [1, "B"],
      ]);
export const count = (value) => (value === null || value === undefined ? "unknown" : digits(value, 0));
export const percent = (frac, most = 1) =>
  frac === null || frac === undefined || !Number.isFinite(frac)
    ? "unknown"
    : frac > 0 && frac < 5e-4
      ? "<0.1%"
      : `${digits(100 * frac, most)}%`;
export const watts = (value) => (value === null || value === undefined ? "unknown" : `${digits(value, 0)} W`);
export const usd = (value) => {
  if (value === null || value === undefined || !Number.isFinite(value)) return "unknown";
  return value >= 1e6 ? `$${short(value)}` : value >= 100 ? `$${digits(value, 0)}` : `$${plain(value)}`;
};

/** @type {[number, string][]} */
const SHORT = [
  [1e12, "T"],
  [1e9, "B"],
  [1e6, "M"],
  [1e3, "k"],
  [1, ""],
];

/** 6.74B, 1.4T: parameters and tokens. */
export function short(value, significant = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "unknown";
  const [factor, unit] = SHORT.find(([least]) => value >= least) ?? SHORT.at(-1);
  return `${plain(value / factor, significant)}${unit}`;
}

/** -20% to +4%, as the range of what is measured around a prediction. */
export const signed = (frac) => `${frac < 0 ? "−" : "+"}${digits(Math.abs(100 * frac), 0)}%`;

/** `2 GPUs`, `1 GPU`. */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** reduce_scatter -> reduce-scatter; dp_shard stays, because plans are written with it. */
export const words = (name) => String(name).replaceAll("_", " ");
