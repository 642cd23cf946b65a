/** Writes PNG files off the main thread: gets {id, bitmap}, answers {id, blob}; null if it fails. */
onmessage = async ({ data: { id, bitmap } }) => {
  let blob = null;
  try {
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    blob = await canvas.convertToBlob({ type: "image/png" });
  } catch {
    // Too large for this browser, for example; the page says so.
  }
  postMessage({ id, blob });
};
