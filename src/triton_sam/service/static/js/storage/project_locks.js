/**
 * Which tab has which project: a tab holds its project until it is closed, so that two tabs never write to the same one.
 * Browsers have locks on https and localhost only. Elsewhere tabs ask each other: whoever has the project answers.
 */
const NAME = "triton-sam.project";
/** After a reload the previous page may keep its lock for a moment; milliseconds. */
const PATIENCE = 1500;
/** How long another tab has for its answer; milliseconds. */
const ANSWER_TIME = 300;

export class ProjectLocks {
  constructor() {
    this._held = new Map();
    if (!navigator.locks) this._answerOthers();
  }

  /**
   * @param {string} project @param {{isPatient?: boolean}} [options] isPatient: it may be free in a moment
   * @returns {Promise<boolean>} whether this tab has it now, until it is released or the tab is closed
   */
  claim(project, { isPatient = false } = {}) {
    if (this._held.has(project)) return Promise.resolve(true);
    return navigator.locks ? this._lock(project, isPatient) : this._ask(project);
  }

  /** @param {string} project */
  release(project) {
    this._held.get(project)?.();
    this._held.delete(project);
  }

  _lock(project, isPatient) {
    const options = isPatient ? { signal: AbortSignal.timeout(PATIENCE) } : { ifAvailable: true };
    return new Promise((resolve) => {
      const hold = (lock) => {
        if (!lock) {
          resolve(false);
          return undefined;
        }
        return new Promise((release) => {
          this._held.set(project, release);
          resolve(true);
        });
      };
      navigator.locks.request(`${NAME}.${project}`, options, hold).catch(() => resolve(false));
    });
  }

  _ask(project) {
    return new Promise((resolve) => {
      const finish = (isFree) => {
        clearTimeout(timer);
        this._channel.removeEventListener("message", listen);
        if (isFree) this._held.set(project, () => {});
        resolve(isFree);
      };
      const listen = ({ data }) => data.taken === project && finish(false);
      const timer = setTimeout(() => finish(true), ANSWER_TIME);
      this._channel.addEventListener("message", listen);
      this._channel.postMessage({ asked: project });
    });
  }

  _answerOthers() {
    this._channel = new BroadcastChannel(NAME);
    this._channel.addEventListener("message", ({ data }) => {
      if (this._held.has(data.asked)) this._channel.postMessage({ taken: data.asked });
    });
  }
}
