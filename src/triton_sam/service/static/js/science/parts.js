/** Everything for scientific images, loaded when the first of them is opened. */
import { notice } from "../ui/notices.js";
import { Contrast } from "./contrast.js";
import { Expander } from "./expand.js";
import { Pages } from "./pages.js";
import { ContrastPanel } from "./panel.js";
import { RenderWorker } from "./render_worker.js";

/**
 * @param {import("../app.js").App} app @param {import("../draw/stage.js").Stage} stage
 * @returns {Expander} the panel is in the page already
 */
export function scienceParts(app, stage) {
  const developing = new RenderWorker(); // apart, so that a long stack does not hold up the open image
  new ContrastPanel(new Contrast(app, stage, new RenderWorker()), new Pages(app, developing));
  return new Expander({
    service: app.service,
    connection: app.connection,
    limits: () => app.limits,
    confirm: (question) => window.confirm(question),
    onPage: (done, pages) => notice("pages", done < pages ? `Reading page ${done + 1} of ${pages}.` : ""),
    renderer: developing,
  });
}
