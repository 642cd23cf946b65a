/**
 * All keyboard shortcuts; the keyboard handler and the help dialog use this list.
 *
 * @typedef {object} Shortcut
 * @property {string} group
 * @property {string} text  what it does
 * @property {string} shown  the keys, for display
 * @property {string[]} keys  KeyboardEvent.key in lower case, with the prefixes "ctrl+" and "shift+"
 * @property {string} [action]  the action to call; none if only the help dialog shows it
 * @property {unknown} [value]
 * @property {boolean} [surfaceOnly]  only while the image has the focus
 */

/** @type {Shortcut[]} */
export const SHORTCUTS = [
  { group: "On the image", text: "Keep what is shown, or add to the object", shown: "Click", keys: [] },
  { group: "On the image", text: "Take away", shown: "Shift+Click, right click", keys: [] },
  { group: "On the image", text: "Choose the object here, or delete the point", shown: "Alt+Click", keys: [] },
  { group: "On the image", text: "Move a point or a corner of the box", shown: "Drag it", keys: [] },
  { group: "On the image", text: "Box around a new object", shown: "Drag", keys: [] },
  { group: "On the image", text: "Zoom to the mouse", shown: "Wheel, pinch", keys: [] },
  { group: "On the image", text: "Move the view", shown: "Space+Drag, middle button", keys: [] },
  { group: "On the image", text: "Move the crosshair", shown: "Arrows (Shift: far)", keys: [] },
  { group: "On the image", text: "Click under the crosshair", shown: "Enter, Shift+Enter", keys: [] },
  { group: "Objects", text: "Next object", shown: "N", keys: ["n"], action: "finish" },
  { group: "Objects", text: "Each click is an object, or not", shown: "S", keys: ["s"], action: "oneClick" },
  { group: "Objects", text: "The next of the model's three masks", shown: "Q", keys: ["q"], action: "nextMask" },
  { group: "Objects", text: "Select the object's next point (arrows move it)", shown: "P", keys: ["p"], action: "nextPoint" },
  { group: "Objects", text: "Class of the object and of the next ones", shown: "1 … 9", keys: ["1"], action: "class", value: 1 },
  ...[2, 3, 4, 5, 6, 7, 8, 9].map((value) => ({ group: "", text: "", shown: "", keys: [String(value)], action: "class", value })),
  { group: "Objects", text: "No class", shown: "0", keys: ["0"], action: "class", value: 0 },
  { group: "Objects", text: "Hide or show the object", shown: "H", keys: ["h"], action: "toggle" },
  { group: "Objects", text: "Delete the selected point, or the object", shown: "Delete", keys: ["delete", "backspace"], action: "remove", surfaceOnly: true },
  { group: "Objects", text: "Accept the found object", shown: "K", keys: ["k"], action: "accept" },
  { group: "Objects", text: "Find what is like the object, or not like it", shown: "L, Shift+L", keys: ["l"], action: "example", value: 1 },
  { group: "", text: "", shown: "", keys: ["shift+l"], action: "example", value: 0 },
  { group: "Objects", text: "Undo", shown: "Ctrl+Z", keys: ["ctrl+z"], action: "undo" },
  { group: "Objects", text: "Redo", shown: "Ctrl+Shift+Z, Ctrl+Y", keys: ["ctrl+shift+z", "ctrl+y"], action: "redo" },
  { group: "Images", text: "Next image", shown: "Page Down", keys: ["pagedown"], action: "image", value: 1 },
  { group: "Images", text: "Image before", shown: "Page Up", keys: ["pageup"], action: "image", value: -1 },
  { group: "Images", text: "Done, or not done", shown: "D", keys: ["d"], action: "done" },
  { group: "Tools", text: "Point and box", shown: "V", keys: ["v"], action: "tool", value: "point" },
  { group: "Tools", text: "Brush", shown: "B", keys: ["b"], action: "tool", value: "brush" },
  { group: "Tools", text: "Eraser", shown: "E", keys: ["e"], action: "tool", value: "eraser" },
  { group: "Tools", text: "Move the view", shown: "M", keys: ["m"], action: "tool", value: "pan" },
  { group: "Tools", text: "Smaller or larger brush", shown: "[ ]  or  , .", keys: ["[", ","], action: "brush", value: 1 / 1.25 },
  { group: "", text: "", shown: "", keys: ["]", ".", "shift+."], action: "brush", value: 1.25 },
  { group: "View", text: "Zoom in, zoom out", shown: "+ −", keys: ["+", "shift++", "="], action: "zoom", value: 1.25 },
  { group: "", text: "", shown: "", keys: ["-", "shift+_"], action: "zoom", value: 0.8 },
  { group: "View", text: "Fit the image", shown: "F", keys: ["f"], action: "fit" },
  { group: "View", text: "Actual size, 100 %", shown: "A", keys: ["a", "shift+!", "shift+1"], action: "actual" },
  { group: "View", text: "Open images and other files", shown: "O", keys: ["o"], action: "open" },
  { group: "View", text: "Stop what is being drawn", shown: "Esc", keys: ["escape"], action: "escape" },
  { group: "View", text: "This sheet", shown: "?", keys: ["?", "shift+?", "f1"], action: "help" },
  { group: "In a video", text: "Next frame, frame before (Shift: 10)", shown: "→ ←", keys: [] },
  { group: "In a video", text: "First, last frame", shown: "Home, End", keys: [] },
  { group: "In a video", text: "Play, pause", shown: "Space", keys: [] },
  { group: "In a video", text: "Track", shown: "T", keys: [] },
  { group: "In a video", text: "Next object; choose one", shown: "N, 1 … 9", keys: [] },
  { group: "In a video", text: "Clear its prompts on this frame", shown: "C", keys: [] },
  { group: "In a video", text: "Remove the object", shown: "Delete", keys: [] },
  { group: "In a video", text: "Crosshair (Shift: far); click there", shown: "W A S D, Enter", keys: [] },
];

/** @param {KeyboardEvent} event @returns {string} */
export function chord(event) {
  const control = event.ctrlKey || event.metaKey ? "ctrl+" : "";
  const shift = event.shiftKey ? "shift+" : "";
  const pressed = control + shift + event.key.toLowerCase();
  if (isKnown(pressed) || event.shiftKey) return pressed;
  // Some keyboards need Shift for digits: there the physical key counts.
  const digit = /^Digit(\d)$/.exec(event.code);
  return digit ? control + digit[1] : pressed;
}

const isKnown = (pressed) => SHORTCUTS.some(({ keys }) => keys.includes(pressed));
