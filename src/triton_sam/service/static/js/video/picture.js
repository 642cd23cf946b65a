/** A frame's picture for the stage; the cache owns its pixels. */
export class FramePicture {
  /** @param {ImageBitmap} bitmap @param {{width: number, height: number}} size of the video */
  constructor(bitmap, { width, height }) {
    this.bitmap = bitmap;
    this.width = width;
    this.height = height;
  }

  /** @param {CanvasRenderingContext2D} context @param {import("../core/view.js").View} view */
  draw(context, { scale, x, y }) {
    if (!this.bitmap.width) return; // freed
    context.imageSmoothingEnabled = scale < 2;
    context.imageSmoothingQuality = "medium";
    context.drawImage(this.bitmap, x, y, this.width * scale, this.height * scale);
  }

  /** The cache frees it. */
  close() {}
}
