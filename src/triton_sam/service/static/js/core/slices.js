/** Long work in slices, so that the page stays usable meanwhile. */

const SLICE_MS = 12;

/**
 * @param {() => number} [now] milliseconds
 * @returns {() => Promise<void>|null} call it often and await what it gives: a pause if a slice is over, else null
 */
export function slices(now = () => performance.now()) {
  let began = now();
  return () => {
    if (now() - began < SLICE_MS) return null;
    // A message is handled at once; timers that follow each other wait 4 ms.
    return new Promise((resolve) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => {
        port1.close();
        began = now();
        resolve();
      };
      port2.postMessage(null);
    });
  };
}
