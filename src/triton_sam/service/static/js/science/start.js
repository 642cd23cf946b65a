/** Scientific images: their parts are loaded when they are needed, because most images need none of them. */
import { setExpander } from "../importers.js";
import { Problem, sentence } from "../net/problems.js";
import { $ } from "../ui/dom.js";
import { headOf, mayHaveMore } from "./file_heads.js";

/** @param {import("../app.js").App} app @param {import("../draw/stage.js").Stage} stage */
export function startScience(app, stage) {
  let loading = null;
  const load = () => {
    loading ??= import("./parts.js").then(
      ({ scienceParts }) => scienceParts(app, stage),
      () => {
        loading = null; // tried again with the next file
        throw new Problem("unreachable");
      },
    );
    return loading;
  };
  const loadForPanel = () => load().catch((error) => app.notice("contrast", sentence(error)));
  setExpander(async (file, name) =>
    mayHaveMore(await headOf(file)) ? (await load()).expand(file, name) : [{ name, file, view: null }]);
  $("contrast-details").ontoggle = () => $("contrast-details").open && loadForPanel();
  app.addEventListener("picture", () => {
    $("contrast").hidden = !app.picture;
    if (app.picture?.view) loadForPanel();
  });
}
