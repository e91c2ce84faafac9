// The numbers on top of the Step view.

import { bytes, count, percent, plain, seconds, short, usd, watts } from "./format.js";
import { label, lessIsBetter } from "./metrics.js";

/** Lines of the chain behind a step's time. */
const STEP = ["step_s", "compute of one layer", "communication", "overlap"];

const named = (name) => ({ name: label(name), lower: lessIsBetter(name) });

/**
 * The numbers on top, each with the line of the chain that explains it.
 * @returns {{name: string, lower: boolean, value: string, sub: string, why: string[], raw: number, bad?: boolean}[]}
 */
export function tilesOf({ measurement: m, memory, power, cost, trust }) {
  const range = (value) =>
    trust?.low_frac === null || trust?.low_frac === undefined
      ? ""
      : `${count(value * (1 + trust.low_frac))} to ${count(value * (1 + trust.high_frac))}`;
  const likely = memory.likely_fits && memory.likely_fits !== "unsure" ? "" : ", but the band crosses the limit";
  const training = m.training;
  return [
    {
      ...named("tokens_per_s_per_gpu"),
      value: plain(m.tokens_per_s_per_gpu, 4),
      sub: range(m.tokens_per_s_per_gpu),
      why: ["tokens_per_s", ...STEP],
      raw: m.tokens_per_s_per_gpu,
    },
    {
      ...named("step_s"),
      value: seconds(m.step_s),
      sub: `${short(m.tokens_per_s)} tokens/s in all`,
      why: STEP,
      raw: m.step_s,
    },
    {
      ...named("mfu_frac"),
      value: percent(m.mfu_frac),
      sub: `${m.flop_convention} FLOP convention`,
      why: ["mfu_frac", "tokens_per_s", ...STEP],
      raw: m.mfu_frac,
    },
    {
      ...named("exposed_comm_s"),
      value: percent(m.exposed_comm_s / m.step_s),
      sub: `${seconds(m.exposed_comm_s)} of the step`,
      why: ["communication", "overlap"],
      raw: m.exposed_comm_s / m.step_s,
    },
    {
      ...named("memory_bytes"),
      value: bytes(memory.total_bytes),
      sub: `${memory.fits ? "fits in" : "does not fit in"} ${bytes(memory.capacity_bytes)}${memory.fits ? likely : ""}`,
      why: ["memory_bytes"],
      raw: memory.total_bytes,
      bad: !memory.fits,
    },
    {
      ...named("power_w_per_gpu"),
      value: watts(power.power_w_per_gpu),
      sub: power.tokens_per_j ? `${plain(power.tokens_per_j)} ${label("tokens_per_j")}` : "",
      why: ["power_w_per_gpu"],
      raw: power.power_w_per_gpu,
    },
    {
      ...named("usd_per_mtoken"),
      value: usd(cost.usd_per_mtoken),
      sub: cost.usd_per_gpu_h ? `at ${usd(cost.usd_per_gpu_h)} per GPU-hour` : "the price is unknown",
      why: ["usd_per_mtoken", "tokens_per_s", ...STEP],
      raw: cost.usd_per_mtoken,
    },
    training && {
      name: `days for ${short(training.tokens)} tokens`,
      value: plain(training.days),
      sub: `${plain(training.low_days)} to ${plain(training.high_days)} days; ${usd(training.cost_usd)}`,
      why: ["tokens_per_s", ...STEP],
      raw: training.days,
      lower: true,
    },
  ].filter(Boolean);
}
