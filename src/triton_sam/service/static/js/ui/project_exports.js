/** The exports of all images of the list: as annotations in one ZIP, and as a project file. */
import { isWaiting } from "../core/document.js";
import { $ } from "./dom.js";
import { download } from "./download.js";
import { notice } from "./notices.js";

/** Loaded when there is something to export, so that it is there if the server is away then. */
const load = () => import("../export/everything.js");
/** Milliseconds between two words about the progress. */
const PAUSE = 500;
const today = () => new Date().toISOString().slice(0, 10);

/** @param {import("../app.js").App} app */
export function startProjectExports(app) {
  let isBusy = false;
  const run = async (name, wanted) => {
    if (isBusy) return;
    isBusy = true;
    let told = performance.now();
    const tell = (done, total) => {
      if (performance.now() - told < PAUSE) return;
      told = performance.now();
      notice("export", `Exporting: ${done} of ${total} images`);
    };
    try {
      app.project.saveNow();
      const { everything } = await load();
      const { blob, unreadable, unseen } = await everything(app, wanted, tell);
      download(blob, `${name}-${today()}.zip`);
      notice("export", remark(app, wanted, unreadable, unseen));
    } catch (error) {
      notice("export", `The export failed. ${error.message}`);
    }
    isBusy = false;
  };
  app.addEventListener("picture", () => load().catch(() => {}), { once: true });
  $("export-all").onclick = () => run("triton-sam", { annotations: true, images: false });
  $("export-project").onclick = () => run("triton-sam-project", { annotations: false, images: $("project-images").checked });
  app.addEventListener("items", () => {
    $("project-exports").hidden = app.items.length === 0;
    $("export-all").hidden = app.items.length < 2;
  });
}

/** @returns {string} what is not in the file as the user may think */
function remark(app, { annotations }, unreadable, unseen) {
  if (unreadable.length) return `Not in the file, because the browser cannot read them: ${unreadable.join(", ")}.`;
  if (annotations && unseen.length) {
    const count = unseen.reduce((sum, one) => sum + one.count, 0);
    const [objects, are] = count === 1 ? ["1 object has", "is"] : [`${count} objects have`, "are"];
    return `${objects} no mask yet and ${are} not in the file. Open ${unseen.map(({ name }) => name).join(", ")} to get them, and export again.`;
  }
  return app.document.things.some(isWaiting) ? "Some objects still wait for their masks, and are exported as they were." : "";
}
