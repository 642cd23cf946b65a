import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { SHORTCUTS, chord } from "../../src/triton_sam/service/static/js/input/shortcuts.js";

const source = (name) =>
  readFileSync(new URL(`../../src/triton_sam/service/static/js/${name}`, import.meta.url), "utf8");
const pressed = (key, modifiers = {}) =>
  chord({ key, code: "", ctrlKey: false, metaKey: false, shiftKey: false, altKey: false, ...modifiers });
const actionOf = (pressedChord) => {
  const { action, value } = SHORTCUTS.find(({ keys }) => keys.includes(pressedChord)) ?? {};
  return [action, value];
};

/** The names of the actions that main.js hands to the keyboard. */
function actionsOfMain() {
  const [, actions] = /new Keyboard\([^{]*\{\n(.*?)\n\}\);/s.exec(source("main.js"));
  return [...actions.matchAll(/^ {2}(\w+)[:,]/gm)].map(([, name]) => name);
}

test("no key does two things", () => {
  const keys = SHORTCUTS.flatMap((shortcut) => shortcut.keys);
  assert.deepEqual(keys.filter((key, index) => keys.indexOf(key) !== index), []);
});

test("every shortcut's action is one of the page's, and every action has a shortcut", () => {
  const named = SHORTCUTS.filter(({ keys }) => keys.length).map(({ action }) => action);
  assert.deepEqual([...new Set(named)].sort(), actionsOfMain().sort());
});

test("what has keys has an action, and what has none is for the help sheet only", () => {
  for (const { keys, action, text } of SHORTCUTS) {
    assert.equal(keys.length > 0, action !== undefined, text);
  }
});

test("each line of the help sheet says what and how; those without a group go with the line before", () => {
  SHORTCUTS.forEach(({ group, text, shown, action }, index) => {
    assert.equal(Boolean(text), Boolean(group));
    assert.equal(Boolean(shown), Boolean(group));
    if (!group) assert.equal(action, SHORTCUTS[index - 1].action);
  });
  const groups = SHORTCUTS.map(({ group }) => group).filter(Boolean);
  const runs = groups.filter((group, index) => group !== groups[index - 1]);
  assert.equal(new Set(runs).size, runs.length, "a group is in one piece");
});

test("every key is written as a press of it is read", () => {
  for (const written of SHORTCUTS.flatMap(({ keys }) => keys)) {
    const [, ctrl, shift, key] = /^(ctrl\+)?(shift\+)?(.+)$/.exec(written);
    assert.equal(pressed(key, { ctrlKey: Boolean(ctrl), shiftKey: Boolean(shift) }), written);
  }
});

test("a chord is read without regard to capitals, and Command counts as Control", () => {
  assert.equal(pressed("n"), "n");
  assert.equal(pressed("N"), "n"); // Caps Lock
  assert.equal(pressed("N", { shiftKey: true }), "shift+n");
  assert.equal(pressed("Z", { ctrlKey: true, shiftKey: true }), "ctrl+shift+z");
  assert.equal(pressed("z", { metaKey: true }), "ctrl+z");
  assert.equal(pressed("Escape"), "escape");
  assert.equal(pressed("+", { shiftKey: true }), "shift++");
});

test("digits are told by their place: some keyboards have them behind Shift", () => {
  assert.equal(pressed("&", { code: "Digit1" }), "1"); // French
  assert.equal(pressed("à", { code: "Digit0" }), "0");
  assert.equal(pressed("ě", { code: "Digit2" }), "2"); // Czech
  assert.equal(pressed("3", { code: "Digit3" }), "3");
  assert.equal(pressed("2", { code: "Numpad2" }), "2");
  assert.equal(pressed("&", { code: "Digit1", ctrlKey: true }), "ctrl+1");
  assert.equal(pressed("!", { code: "Digit1", shiftKey: true }), "shift+!", "with Shift the key itself counts");
  assert.equal(pressed("1", { code: "Digit1", shiftKey: true }), "shift+1");
  assert.equal(pressed("F1", { code: "F1" }), "f1");
  assert.equal(pressed("+", { code: "NumpadAdd" }), "+");
  assert.equal(pressed("-", { code: "NumpadSubtract" }), "-");
  const classes = Array.from({ length: 10 }, (_, digit) => actionOf(pressed("", { code: `Digit${digit}` })));
  assert.deepEqual(classes, Array.from({ length: 10 }, (_, digit) => ["class", digit]));
});


test("a key that writes a shortcut of its own does that, wherever it is", () => {
  assert.deepEqual(actionOf(pressed("-", { code: "Digit6" })), ["zoom", 0.8]); // French
  assert.deepEqual(actionOf(pressed("Insert", { code: "Numpad0" })), [undefined, undefined]); // Num Lock is off
  assert.deepEqual(actionOf(pressed("End", { code: "Numpad1" })), [undefined, undefined]);
});

test("the brush has keys without AltGr: comma and full stop do as the brackets", () => {
  const actions = ["[", ",", "]", "."].map((key) => actionOf(pressed(key)));
  assert.deepEqual(actions, [["brush", 1 / 1.25], ["brush", 1 / 1.25], ["brush", 1.25], ["brush", 1.25]]);
});

test("the tools that keys choose are those of the interaction", () => {
  const [, types] = /@type \{([^}]*)\} \*\/\s*this\.tool =/.exec(source("interaction.js"));
  const tools = SHORTCUTS.filter(({ action }) => action === "tool").map(({ value }) => value);
  assert.deepEqual(tools.sort(), types.split("|").map((tool) => JSON.parse(tool)).sort());
});
