/** An archive off the main thread: {id, kind, ...} calls the method of that name, and is answered with {id, ...} or {id, error}. */
import { Archive } from "./archive.js";

const archive = new Archive();
let turn = Promise.resolve();

onmessage = ({ data: { id, kind, ...given } }) => {
  turn = turn.then(async () => {
    try {
      postMessage({ id, ...(await archive[kind](given)) });
    } catch (error) {
      postMessage({ id, error: error.message });
    }
  });
};
postMessage({ id: 0 }); // it is loaded
