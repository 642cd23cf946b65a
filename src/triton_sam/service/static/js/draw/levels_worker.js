/** Halves large images: see levels.js. */
import { halvedInWorker } from "./levels.js";

self.onmessage = ({ data: { id, bitmap } }) => {
  const levels = halvedInWorker(bitmap);
  self.postMessage({ id, bitmap, levels }, [bitmap, ...levels]);
};
