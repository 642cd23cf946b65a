/** An image pyramid: the image at full size and repeatedly halved, so that drawing it small does not read all pixels. */
import { levelsOf } from "./levels.js";

export class Pyramid {
  /**
   * @param {ImageBitmap} bitmap  owned by the pyramid
   * @param {{width: number, height: number}} [size] of the image, if the bitmap is a coarse one of it
   */
  constructor(bitmap, { width, height } = bitmap) {
    this.width = width;
    this.height = height;
    this._levels = [bitmap, ...levelsOf(bitmap)];
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {import("../core/view.js").View} view
   */
  draw(context, view) {
    const wanted = this.width * view.scale;
    // The smallest level that is not enlarged; at a high zoom single pixels stay sharp squares.
    const level = this._levels.findLast((candidate) => candidate.width >= wanted) ?? this._levels[0];
    context.imageSmoothingEnabled = view.scale < 2;
    context.imageSmoothingQuality = "medium";
    const { canvas } = context;
    // Only the visible part: a browser would process pixels outside the canvas too.
    const x0 = Math.max(0, -view.x / view.scale);
    const y0 = Math.max(0, -view.y / view.scale);
    const x1 = Math.min(this.width, (canvas.width - view.x) / view.scale);
    const y1 = Math.min(this.height, (canvas.height - view.y) / view.scale);
    if (x1 <= x0 || y1 <= y0) return;
    const [shrinkX, shrinkY] = [level.width / this.width, level.height / this.height]; // levels have whole sides
    context.drawImage(
      level,
      x0 * shrinkX, y0 * shrinkY, (x1 - x0) * shrinkX, (y1 - y0) * shrinkY,
      x0 * view.scale + view.x, y0 * view.scale + view.y, (x1 - x0) * view.scale, (y1 - y0) * view.scale,
    );
  }

  /** Frees the memory. */
  close() {
    for (const level of this._levels) level.close?.();
    this._levels = [];
  }
}
