/**
 * PNG files of drawings, written by a worker. On the page's own thread, browsers write them only while it is idle: the first
 * file may then take seconds (Chromium waits up to 6.7 s), however small it is.
 */

let worker = null;
const waiting = new Map();
let count = 0;

/** @param {ImageBitmap} bitmap  closed afterwards @returns {Promise<Blob>} */
export function pngOfBitmap(bitmap) {
  if (!globalThis.OffscreenCanvas || !globalThis.Worker) return pngOfCanvas(bitmap);
  worker ??= startWorker();
  const id = ++count;
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, bitmap }, [bitmap]);
  });
}

function startWorker() {
  const made = new Worker(new URL("./canvas_png_worker.js", import.meta.url), { type: "module" });
  made.onmessage = ({ data: { id, blob } }) => settle(id, blob);
  made.onerror = () => [...waiting.keys()].forEach((id) => settle(id, null));
  return made;
}

function settle(id, blob) {
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (blob) resolve(blob);
  else reject(new Error("The browser cannot write this image as PNG."));
}

/** For browsers without canvases in workers. */
function pngOfCanvas(bitmap) {
  const canvas = document.createElement("canvas");
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  bitmap.close();
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("The browser cannot write this image as PNG."))), "image/png"));
}
