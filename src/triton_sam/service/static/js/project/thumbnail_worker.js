/** Shrinks images off the main thread: gets {id, bitmap, size}, answers {id, blob}; null if it fails. */
onmessage = async ({ data: { id, bitmap, size } }) => {
  let blob = null;
  try {
    const scale = Math.min(1, size / Math.max(bitmap.width, bitmap.height));
    const side = (length) => Math.max(1, Math.round(length * scale));
    const canvas = new OffscreenCanvas(side(bitmap.width), side(bitmap.height));
    const context = canvas.getContext("2d");
    context.fillStyle = "#fff"; // the model sees white under transparent parts
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingQuality = "high";
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    blob = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.8 });
  } catch {
    // The list shows an empty frame.
  }
  postMessage({ id, blob });
};
