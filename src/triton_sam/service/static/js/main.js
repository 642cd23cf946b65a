/** Puts the page together. */
import { App } from "./app.js";
import { ChatSession } from "./chat_session.js";
import * as documents from "./core/document.js";
import { accept } from "./core/found.js";
import { Stage } from "./draw/stage.js";
import { FindSession } from "./find_session.js";
import { Keyboard } from "./input/keyboard.js";
import { PointerInput } from "./input/pointer.js";
import { Interaction } from "./interaction.js";
import { startProjectFiles } from "./project/project_files.js";
import { startScience } from "./science/start.js";
import { startAsk } from "./ui/chat_panel.js";
import { startClasses } from "./ui/classes.js";
import { MaskChoice } from "./ui/mask_choice.js";
import { startMaskSettings } from "./ui/mask_settings.js";
import { startHelp, startToken } from "./ui/dialogs.js";
import { $ } from "./ui/dom.js";
import { startExports } from "./ui/exports.js";
import { startFiles, startSamples } from "./ui/files.js";
import { startFind } from "./ui/find_panel.js";
import { startHint } from "./ui/hint.js";
import { startImports } from "./ui/imports.js";
import { startImageList } from "./ui/image_list.js";
import { startModels } from "./ui/models.js";
import { notice } from "./ui/notices.js";
import { ObjectList } from "./ui/objects.js";
import { startPointButton } from "./ui/point_button.js";
import { startProjectExports } from "./ui/project_exports.js";
import { EncodeProgress } from "./ui/progress.js";
import { startStatus } from "./ui/status.js";
import { startTheme } from "./ui/theme.js";
import { startTools } from "./ui/tools.js";
import { startVideo } from "./video/start.js";
import { startWords } from "./words/start.js";

const app = new App();
let showView = () => {};
const stage = new Stage($("surface"), () => showView());
const interaction = new Interaction(app, stage);
const pointer = new PointerInput($("surface"), stage, interaction);

startTheme();
startToken(app);
const showScale = startStatus(app, stage, interaction);
showView = () => {
  showScale();
  if (!pointer.isMovingView) interaction.hoverAgain(); // another part of the image is under the mouse
};
new EncodeProgress(app);
const list = new ObjectList(app);
const choice = new MaskChoice(app);
startHint(app, interaction);
startExports(app, stage);
startProjectExports(app);
startProjectFiles();
startScience(app, stage);
const { choose } = startFiles(app);
const images = startImageList(app);
startClasses(app);
startImports(app);
const showHelp = startHelp();
const video = startVideo(app, { showHelp, choose });
const tools = startTools(app, stage, interaction);
startMaskSettings(app, interaction);
startFind(app, new FindSession(app), list, tools.closePanel);
const words = startWords(app, interaction, tools.closePanel);
startPointButton(interaction);
startAsk(app, new ChatSession(app), interaction, tools.closePanel);

const onActive = (action) => () => {
  const active = documents.activeThing(app.document);
  if (active) app.change((document) => action(document, active));
};
const removeActive = onActive((document, { id }) => documents.remove(document, id));
new Keyboard($("surface"), interaction, pointer, {
  finish: () => interaction.finish(),
  nextMask: () => choice.pickNext(),
  oneClick: () => interaction.setOneClick(!interaction.isOneClick),
  nextPoint: () => interaction.handles.selectNext(),
  class: (digit) => app.classes.press(digit),
  toggle: onActive((document, { id, visible }) => documents.describe(document, id, { visible: !visible })),
  accept: onActive((document, { id }) => accept(document, id)),
  example: (label) => words.example(label),
  remove: () => interaction.handles.removeSelected() || removeActive(),
  undo: () => app.undo(),
  redo: () => app.redo(),
  tool: (tool) => interaction.setTool(tool),
  brush: (factor) => interaction.setBrush(interaction.brushRadius * factor),
  zoom: (factor) => stage.zoom(factor),
  fit: () => stage.fit(),
  actual: () => stage.showActualSize(),
  open: choose,
  image: (by) => images.step(by),
  done: () => images.toggleDone(),
  escape: () => {
    pointer.abandon();
    interaction.handles.select(null);
    tools.closePanel();
  },
  help: showHelp,
});

app.addEventListener("announce", ({ detail }) => ($("announcements").textContent = detail));
app.addEventListener("notice", ({ detail }) => notice(detail.kind, detail.text, detail.action));
app.addEventListener("picture", () => {
  const name = app.picture?.name ?? "";
  $("welcome").hidden = name !== "";
  $("picture-name").textContent = name;
  $("surface").setAttribute("aria-label", `Image ${name}`);
  document.title = name ? `${name} · triton-sam` : "triton-sam";
  // Who goes through the list with the keyboard stays there.
  if (app.picture && !$("images").contains(document.activeElement)) $("surface").focus();
  tools.enable();
});

startSamples(app);
app.connection.persist(() => app.service.limits()).then((limits) => (app.limits = limits), () => {});
await Promise.all([app.restore(), startModels(app)]);
await video.restore();
document.documentElement.dataset.ready = "yes";
