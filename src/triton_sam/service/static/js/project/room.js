/** How much the browser still stores. Browsers tell it on https and localhost only. */

/** This part of the storage is left free, for the work on the images. */
const RESERVE = 0.05;
const MEGABYTE = 1e6;

/** @param {number} bytes @returns {Promise<number|null>} null if there is room, or if it is unknown; else the free megabytes */
export async function roomFor(bytes) {
  try {
    const { usage, quota } = await navigator.storage.estimate();
    const free = quota * (1 - RESERVE) - usage;
    return bytes <= free ? null : Math.max(0, Math.floor(free / MEGABYTE));
  } catch {
    return null;
  }
}
