/** How long the largest masks take; to be read, not asserted: machines differ. */

import test from "node:test";

import * as masks from "../../src/triton_sam/service/static/js/core/mask.js";
import * as ops from "../../src/triton_sam/service/static/js/core/mask_ops.js";
import { polygonsOf } from "../../src/triton_sam/service/static/js/core/polygon.js";
import { labelImage, maskImage } from "../../src/triton_sam/service/static/js/export/label_image.js";
import { largeMask } from "./helpers.js";

const mask = largeMask();
const document = masks.toCocoRle(mask);
const spiral = Array.from({ length: 1500 }, (_, index) => ({
  x: 3000 + index * Math.cos(index / 40),
  y: 2000 + index * Math.sin(index / 40),
}));
const steps = {
  fromCocoRle: () => masks.fromCocoRle(document),
  toCocoRle: () => masks.toCocoRle(mask),
  bounds: () => masks.bounds(mask),
  contains: () => masks.contains(mask, 5999, 3999),
  union: () => ops.union(mask, ops.strokeMask(6000, 4000, [{ x: 3000, y: 2000 }], 300)),
  columnSpans: () => ops.columnSpans({ ...mask }),
  toBitmap: () => ops.toBitmap(mask),
  "strokeMask, 1500 points, radius 60": () => ops.strokeMask(6000, 4000, spiral, 60),
  polygonsOf: () => polygonsOf(mask),
  maskImage: () => maskImage(mask),
  labelImage: () => labelImage({ name: "", width: 6000, height: 4000 }, [{ mask }, { mask }]),
};

test(`timings at 6000 x 4000 pixels and ${mask.runs.length} runs`, async (context) => {
  for (const [name, step] of Object.entries(steps)) {
    const times = [];
    for (let round = 0; round < 3; round += 1) {
      const start = performance.now();
      await step();
      times.push(performance.now() - start);
    }
    const [first, best] = [times[0], Math.min(...times)].map((time) => time.toFixed(1));
    context.diagnostic(`${name}: ${first} ms at first, ${best} ms at best`);
  }
});
