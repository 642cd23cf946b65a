import * as documents from "../../src/triton_sam/service/static/js/core/document.js";

export const point = (x, y, label = 1) => ({ x, y, label });

export const oneClick = () => documents.addPoint(documents.newDocument(), point(1, 2));

/** A document whose active object has got these masks as the answer to its prompt. */
export const answered = (document, masks, scores = masks.map(() => 0.5)) => {
  const key = documents.promptKey(documents.activeThing(document));
  return documents.answering(key, masks.map((mask, index) => ({ mask, score: scores[index] })))(document);
};
