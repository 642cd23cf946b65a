/**
 * Connected regions of pixels that are given as vertical spans, column by column.
 *
 * @typedef {object} Spans Original pixels, as columnSpans returns them. Column x has the spans i = offsets[x] ..
 *   offsets[x + 1] - 1, downwards, from spans[2 * i] (inclusive) to spans[2 * i + 1] (exclusive).
 * @property {Uint32Array} offsets
 * @property {Uint32Array} spans
 */

/**
 * @param {Spans} all
 * @param {boolean} byCorners Whether pixels that touch at a corner are connected too (8 neighbours, not 4).
 * @returns {Uint32Array} A forest over the spans' indices for {@link rootOf}: spans of one region have one root.
 */
export function connected({ offsets, spans }, byCorners) {
  const reach = byCorners ? 1 : 0;
  const parents = new Uint32Array(spans.length / 2);
  for (let index = 0; index < parents.length; index += 1) parents[index] = index;
  for (let x = 1; x + 1 < offsets.length; x += 1) {
    let before = offsets[x - 1];
    let here = offsets[x];
    while (before < offsets[x] && here < offsets[x + 1]) {
      const meet = spans[2 * before] < spans[2 * here + 1] + reach && spans[2 * here] < spans[2 * before + 1] + reach;
      if (meet) parents[rootOf(parents, here)] = rootOf(parents, before);
      if (spans[2 * before + 1] < spans[2 * here + 1]) before += 1;
      else here += 1;
    }
  }
  return parents;
}

/** @param {Uint32Array} parents of {@link connected} @param {number} index of a span @returns {number} of its region's root */
export function rootOf(parents, index) {
  let node = index;
  while (parents[node] !== node) {
    parents[node] = parents[parents[node]];
    node = parents[node];
  }
  return node;
}
