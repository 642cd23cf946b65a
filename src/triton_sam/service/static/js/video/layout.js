/** The elements of a video's workplace, without what they do. */
import { element, icon } from "../ui/dom.js";

const LAYERS = ["picture", "masks", "preview", "marks"];

const button = (id, name, label, properties = {}) =>
  element("button", { type: "button", id, class: "button", ...properties }, ...(name ? [icon(name)] : []), element("span", {}, label));

const bare = (id, name, label, title = label) =>
  element("button", { type: "button", id, class: "button bare", "aria-label": label, title }, icon(name));

const tool = (id, name, label, title, properties = {}) =>
  element("button", { type: "button", id, class: "tool", "aria-label": label, title, ...properties }, icon(name));

/** @param {{word: string, info: import("./video_service.js").VideoInfo}} film @returns {HTMLElement} */
export function workplace(film) {
  const main = element("div", { class: "video-main" }, stage(film), timeline(film));
  return element("div", { class: "work video-work", id: "video-work" }, tools(film), main, panel(film));
}

function tools({ word }) {
  const sign = (value, name, label, kind) =>
    element("button", { type: "button", class: `tool ${kind}`, role: "radio", "data-sign": value, "aria-checked": String(value === "1"), "aria-label": label,
      title: label + (value === "0" ? " (Shift)" : ""), tabIndex: value === "1" ? 0 : -1 }, icon(name));
  return element("nav", { class: "tools", "aria-label": "Video tools" },
    element("div", { class: "group", role: "radiogroup", "aria-label": "What a click does", id: "video-sign" },
      sign("1", "plus", "Click adds", "add"), sign("0", "minus", "Click takes away", "take")),
    element("div", { class: "group" },
      tool("video-clear", "erase", `Clear the object's prompts on this ${word}`, `Clear the object's prompts on this ${word} (C)`),
      tool("video-fit", "fit", `Fit the ${word}`, `Fit the ${word} (F)`)),
    tool("video-show-panel", "list", "Objects and export", "Objects and export", { class: "tool sheet-button", "aria-expanded": "false", "aria-controls": "video-panel" }));
}

function stage({ word, info }) {
  const canvases = LAYERS.map((layer) => element("canvas", { id: `video-${layer}`, "data-layer": layer }));
  const surface = element("div", { class: "surface", id: "video-surface", tabIndex: 0, role: "application", "aria-label": `Video ${info.name}`,
    "aria-describedby": "video-help" }, ...canvases);
  const help = `Left and right arrow go from ${word} to ${word}, Space plays. W, A, S and D move the crosshair, Enter adds the area under it, ` +
    "Shift and Enter removes it. N starts the next object.";
  return element("main", { class: "stage", id: "video-stage" }, surface,
    element("p", { id: "video-help", class: "for-readers" }, help),
    element("div", { class: "messages", id: "video-messages" }, element("p", { class: "hint", id: "video-hint", hidden: true })));
}

function timeline({ word, info }) {
  const Word = word[0].toUpperCase() + word.slice(1);
  const number = element("input", { type: "number", id: "video-number", min: "0", max: String(info.frames - 1), value: "0", "aria-label": Word });
  const place = element("label", { class: "video-place" }, element("span", { class: "label" }, Word), number,
    element("span", { class: "fine" }, `of ${info.frames.toLocaleString("en")}`), element("span", { class: "fine", id: "video-time" }));
  const playing = element("div", { class: "video-playing" }, bare("video-before", "left", `${Word} before`, `${Word} before (Left)`),
    bare("video-play", "play", "Play", "Play (Space)"), bare("video-next", "right", `Next ${word}`, `Next ${word} (Right)`), place);
  const isStack = info.axis === "z";
  const track = element("div", { class: "video-track", id: "video-track", role: "group", "aria-label": "Track" },
    element("span", { class: "label" }, "Track"),
    button("video-backward", "", isStack ? "Down" : "Backward", { title: `From the last prompt to ${word} 0` }),
    button("video-both", "", "Both", { title: "In both directions" }),
    button("video-forward", "", isStack ? "Up" : "Forward", { title: `From the first prompt to the last ${word}` }));
  const remedy = button("video-remedy", "", "", { class: "button strong", hidden: true });
  const progress = element("div", { class: "video-progress", id: "video-progress", hidden: true },
    element("span", { id: "video-progress-text" }), element("progress", { id: "video-progress-bar", max: 1, "aria-label": "Tracked" }),
    button("video-cancel", "", "Cancel"));
  const strip = element("div", { class: "strip", id: "video-strip", role: "slider", tabIndex: 0, "aria-label": Word, "aria-valuemin": "0",
    "aria-valuemax": String(info.frames - 1), "aria-valuenow": "0" }, element("div", { class: "thumbs", id: "video-thumbs" }));
  const lanes = element("div", { class: "lanes", id: "video-lanes", role: "group", "aria-label": `Where each object is, by ${word}` });
  return element("section", { class: "film", "aria-label": "Timeline" },
    element("div", { class: "transport" }, playing, element("span", { class: "spring" }), remedy, track, progress),
    element("div", { class: "timeline", id: "video-timeline" }, strip, lanes, element("div", { class: "playhead", "aria-hidden": "true" })));
}

function panel(film) {
  const head = element("div", { class: "panel-head" }, element("h2", {}, "Objects"),
    button("video-new", "plus", "New object", { class: "button strong", title: "Next object (N)" }),
    element("button", { type: "button", id: "video-hide-panel", class: "button bare sheet-close", "aria-label": "Close" }, icon("close")));
  const body = element("div", { class: "panel-body" },
    element("p", { class: "quiet", id: "video-none" }, `Click an object in any ${film.word}, or drag a box around it; then track it.`),
    element("ol", { class: "objects", id: "video-objects" }),
    about(film), display(), exports(film));
  return element("aside", { class: "panel", id: "video-panel", "aria-label": "Objects and export" }, head, body);
}

const block = (id, title, ...children) =>
  element("section", { class: "block", id, "aria-labelledby": `${id}-title` }, element("h2", { id: `${id}-title` }, title), ...children);

function about({ word }) {
  return block("video-about", word === "slice" ? "Stack" : "Video",
    element("p", { class: "fine", id: "video-facts" }), element("div", { class: "fine video-notes", id: "video-notes" }),
    element("label", { class: "row" }, element("span", { class: "label" }, "Model"), element("select", { id: "video-model" })),
    element("details", { class: "fine", id: "video-memory", hidden: true },
      element("summary", {}, "Memory trained on generated clips"),
      element("p", {}, "This model needs no download. Its memory was trained by this project on generated clips: it loses objects sooner than Meta's models, " +
        "which triton-sam setup sam2.1:tiny installs. docs/guides/video.md has the figures.")),
    button("video-close", "close", word === "slice" ? "Close the stack" : "Close the video"));
}

const display = () => block("video-display", "Display",
  element("label", { class: "row" }, element("span", { class: "label" }, "Opacity"),
    element("input", { type: "range", id: "video-opacity", min: "0", max: "100" })));

function exports({ word }) {
  const kind = (format, label, title) => button("", "", label, { "data-format": format, disabled: true, title });
  const buttons = [kind("png", "Label images", `A ZIP with a PNG for each ${word}: pixels with value k are object k`),
    kind("coco", "COCO JSON", `A record for each object and ${word}, with the object as track_id`)];
  if (word === "slice") buttons.push(kind("tiff", "Label volume", "A TIFF with a page for each slice: pixels with value k are object k"));
  else buttons.push(kind("youtube_vis", "YouTube-VIS", "A record for each object, with a mask for each frame"));
  buttons.push(kind("mp4", "Overlay video", "An MP4 with the objects in their colours"));
  return block("video-export", "Export", element("div", { class: "exports", id: "video-exports" }, ...buttons));
}
