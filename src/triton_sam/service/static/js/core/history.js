/**
 * @template T
 * @typedef {{past: T[], present: T, future: T[]}} History  Immutable; documents share what did not change.
 */

/** @template T @param {T} present @returns {History<T>} */
export const newHistory = (present) => ({ past: [], present, future: [] });

/** Adds an undo step; the redo steps are lost. */
export function step(history, present) {
  if (present === history.present) return history;
  return { past: [...history.past, history.present], present, future: [] };
}

/** A change without an undo step: for example, which object is selected. */
export const replace = (history, present) => (present === history.present ? history : { ...history, present });

/**
 * Changes every document, past and future ones too: a late response belongs to its prompt, wherever that is in the history.
 * @param {(document: T) => T} change returns the same document if nothing changes
 */
export function amend(history, change) {
  const changed = (documents) => {
    const next = documents.map(change);
    return next.some((document, index) => document !== documents[index]) ? next : documents;
  };
  const [past, present, future] = [changed(history.past), change(history.present), changed(history.future)];
  const same = past === history.past && present === history.present && future === history.future;
  return same ? history : { past, present, future };
}

export const canUndo = (history) => history.past.length > 0;
export const canRedo = (history) => history.future.length > 0;

export function undo(history) {
  if (!canUndo(history)) return history;
  const past = history.past.slice(0, -1);
  return { past, present: history.past[past.length], future: [history.present, ...history.future] };
}

export function redo(history) {
  if (!canRedo(history)) return history;
  const [present, ...future] = history.future;
  return { past: [...history.past, history.present], present, future };
}
