/** The worker that holds the samples of the open image, so that no step of the page waits for millions of pixels. */
import { halvedInWorker } from "../draw/levels.js";
import { Problem } from "../net/problems.js";
import { expanded, planesOf } from "./planes.js";
import { develop, histogramsOf, pixelsOf, pngOf, samplesOf } from "./rendering.js";

/** Pixels of a quick look while a handle is moved. */
const QUICK = 1 << 20;
const OTHER = "this image cannot be drawn, perhaps for want of memory: open a smaller one";

let planes = null;

const bitmapOf = ({ width, height, data }) => createImageBitmap(new ImageData(data, width, height));

const TASKS = {
  develop: ({ samples, about, isStretched }) => develop(samples, about, isStretched),

  async load({ view }) {
    planes = planesOf(await expanded(view.source), view);
    return histogramsOf(planes, view.dtype);
  },

  /** An ordinary picture, over white, as the model sees it. */
  async split({ file }) {
    const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
    const { width, height } = bitmap;
    const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    context.fillStyle = "#fff";
    context.fillRect(0, 0, width, height);
    context.drawImage(bitmap, 0, 0);
    bitmap.close();
    const samples = samplesOf(context.getImageData(0, 0, width, height));
    const channels = samples.length / (width * height);
    return { samples: new Blob([samples]), width, height, channels };
  },

  render: async ({ view }) => pngOf(planesOf(await expanded(view.source), view), view),

  quick({ view }) {
    return bitmapOf(pixelsOf(planes, view, Math.ceil(Math.sqrt((planes.width * planes.height) / QUICK))));
  },

  async finish({ view }) {
    const bitmap = await bitmapOf(pixelsOf(planes, view));
    return { bitmap, levels: halvedInWorker(bitmap), file: await pngOf(planes, view) };
  },
};

async function run({ id, task, values }) {
  try {
    const result = await TASKS[task](values);
    const bitmaps = [result, result?.bitmap, ...(result?.levels ?? [])].filter((part) => part instanceof ImageBitmap);
    self.postMessage({ id, result }, bitmaps);
  } catch (error) {
    const isKnown = error instanceof Problem;
    self.postMessage({ id, problem: isKnown ? { code: error.code, detail: error.detail } : { code: "refused", detail: OTHER } });
  }
}

let last = Promise.resolve();
self.onmessage = ({ data }) => {
  last = last.then(() => run(data)); // in order: what is drawn must be what was loaded before
};
