/** Videos and stacks: what is dropped or opened comes here. All else of this folder is loaded with the first one. */
import { registerImporter, setStackTaker } from "../importers.js";
import { Problem } from "../net/problems.js";
import { $ } from "../ui/dom.js";
import { loadStyles } from "../ui/styles.js";
import { keptVideo } from "./kept.js";
import { ENDINGS, isAnimatedWebp, isVideo } from "./kinds.js";
import { NO_MODEL, videoModels } from "./models.js";

const AS_SLICES = ["z", "Track objects through it, as slices of a stack"];
const AS_FRAMES = ["t", "Track objects through it, as frames over time"];

/**
 * @param {import("../app.js").App} app
 * @param {{showHelp: () => void, choose: () => void}} page
 * @returns {{restore: () => Promise<void>}} restore: shows the video that was open before a reload
 */
export function startVideo(app, page) {
  let loading = null;
  const load = () => {
    loading ??= Promise.all([import("./parts.js"), loadStyles(new URL("../../css/video.css", import.meta.url))]).then(
      ([{ videoParts }]) => videoParts(app, page),
      () => {
        loading = null; // tried again with the next file
        throw new Problem("unreachable");
      },
    );
    return loading;
  };
  const hasModel = async () => videoModels(await knownModels(app)).length > 0;
  const open = async (file, options) => {
    if (!(await hasModel())) throw new Problem("refused", NO_MODEL);
    (await load()).session.begin(file, options); // goes on while other files are taken
  };
  const ask = async (name, pages, choices) => (await load()).askHow(name, pages, choices);
  registerImporter({ accepts: isVideo, run: (_, file) => open(file), endings: ENDINGS });
  registerImporter({
    accepts: (file, head) => isAnimatedWebp(head) && videoModels(app.models).length > 0,
    run: async (_, file) => {
      const choice = await ask(file.name, null, [AS_FRAMES, ["image", "Open its first frame as an image"]]);
      if (choice === "t") await open(file);
      else if (choice) await app.open(file, file.name);
    },
  });
  setStackTaker(async (file, name, pages) => {
    if (!videoModels(app.models).length) return false;
    const asImages = pages ? [["images", "Add its pages to the list of images"]] : []; // else it is too large for that
    const choice = await ask(name, pages, [AS_SLICES, AS_FRAMES, ...asImages]);
    if (choice === "t" || choice === "z") await open(named(file, name), { axis: choice });
    return choice !== "images";
  });
  app.addEventListener("models", () => ($("drop-video").hidden = videoModels(app.models).length === 0));
  return { restore: async () => keptVideo() && (await load()).session.restore() };
}

/** Files of a folder have a path as name. */
const named = (file, name) => (file.name ? file : new File([file], name));

/** @returns {Promise<import("./models.js").Model[]>} once the server has told them */
async function knownModels(app) {
  return app.models.length ? app.models : app.connection.persist(() => app.service.models());
}
