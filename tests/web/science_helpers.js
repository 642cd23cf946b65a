/** What the tests of scientific images share: a render worker without a worker, and a service that has a stack in memory. */
import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { develop } from "../../src/triton_sam/service/static/js/science/rendering.js";

export const renderer = { develop };
export const connection = { persist: (ask) => ask() };

/** A file that begins as a TIFF does. */
export const tiff = (bytes = 100) => new Blob([Uint8Array.of(0x49, 0x49, 42, 0), new Uint8Array(bytes)]);

/**
 * @param {Uint16Array[]|Uint8Array[]} pages each [C,H,W]
 * @param {object} about width, height, channels, and what else is in the description
 * @returns {object} as net/service.js; `asked` has the [first, count] of each request for planes
 */
export function fakeService(pages, { low = 0, high = 65535, notFinite = 0, most = Infinity, ...about }) {
  const bits = pages[0].BYTES_PER_ELEMENT * 8;
  const description = { format: "TIFF", pages: pages.length, channel_names: null, dtype: `uint${bits}`, bits, ...about };
  const asked = [];
  return {
    asked,
    described: 0,
    async describe() {
      this.described += 1;
      if (about.problem) throw new Problem("bad_request", about.problem);
      return description;
    },
    async planes(file, first, wanted) {
      asked.push([first, wanted]);
      const count = Math.min(wanted, most);
      const { width, height, channels } = about;
      const header = { width, height, channels, pages: count, dtype: `uint${bits}`, low, high, not_finite: notFinite };
      return { header: JSON.stringify(header), body: new Blob(pages.slice(first, first + count)) };
    },
  };
}
