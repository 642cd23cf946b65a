/** Puts the parts for scientific images together: files become items, and the panel has their contrast. */
import { setExpander } from "../importers.js";
import { notice } from "../ui/notices.js";
import { Contrast } from "./contrast.js";
import { Expander } from "./expand.js";
import { Pages } from "./pages.js";
import { ContrastPanel } from "./panel.js";
import { Workshop } from "./workshop.js";

/** @param {import("../app.js").App} app @param {import("../draw/stage.js").Stage} stage */
export function startScience(app, stage) {
  const developing = new Workshop(); // apart, so that a long stack does not hold up the open image
  const expander = new Expander({
    service: app.service,
    connection: app.connection,
    limits: () => app.limits,
    confirm: (question) => window.confirm(question),
    onPage: (done, pages) => notice("pages", done < pages ? `Reading page ${done + 1} of ${pages}.` : ""),
    workshop: developing,
  });
  setExpander((file, name) => expander.expand(file, name));
  new ContrastPanel(new Contrast(app, stage, new Workshop()), new Pages(app, developing));
}
