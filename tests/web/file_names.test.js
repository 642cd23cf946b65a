import assert from "node:assert/strict";
import test from "node:test";

import { safeFileName, stemOfName, uniqueNames } from "../../src/triton_sam/service/static/js/core/file_names.js";

test("a stem keeps the page of a stack", () => {
  const examples = [["a.tif", "a"], ["stack.ome.tif#7", "stack.ome-7"], ["no ending", "no ending"], ["a#b.png", "a#b"], ["#3", "-3"]];
  for (const [name, stem] of examples) assert.equal(stemOfName(name), stem);
});

test("a name has nothing that a file system refuses", () => {
  const examples = [
    ["cell 1", "cell 1"],
    ["Zellkern ä 細胞 клетка 🔬", "Zellkern ä 細胞 клетка 🔬"],
    ["a/b\\c", "a_b_c"],
    ["../../etc/passwd", "_.._etc_passwd"],
    ['<a>:"b"|?*', "_a___b____"],
    ["tab\tline\nnull\0", "tab_line_null_"],
    ["  .hidden. ", "hidden"],
    ["scan.tif", "scan.tif"],
    ["con", "_con"],
    ["LPT1.txt", "_LPT1.txt"],
    ["console", "console"],
    ["\u202egnp.exe", "_gnp.exe"],
    ["half \ud83d", "half _"],
    ["e\u0301", "é"],
  ];
  for (const [text, name] of examples) assert.equal(safeFileName(text, "object"), name);
});

test("where nothing is left, the fallback is taken", () => {
  for (const text of ["", "   ", "...", "///", "\n", null, undefined]) {
    assert.equal(safeFileName(text, "object"), "object");
  }
});

test("a long name is cut to 80 characters, not in the middle of one", () => {
  assert.equal(safeFileName("x".repeat(300), "object"), "x".repeat(80));
  assert.equal(safeFileName("x".repeat(79) + "🔬", "object"), "x".repeat(79));
  assert.equal(safeFileName("x".repeat(79) + " y", "object"), "x".repeat(79));
  assert.ok(safeFileName("con." + "x".repeat(300), "object").length <= 80);
});

test("names that are taken get a number", () => {
  const examples = [
    [[], []],
    [["cell", "cell", "Cell"], ["cell", "cell-2", "Cell-3"]],
    [["cell", "cell", "cell-2"], ["cell", "cell-3", "cell-2"]],
    [["cell-2", "cell", "cell", "cell-2"], ["cell-2", "cell", "cell-3", "cell-2-2"]],
    [["a", "a", "a-2", "a-2", "A-2-2"], ["a", "a-3", "a-2", "a-2-3", "A-2-2"]],
    [["é", "e\u0301"], ["é", "e\u0301-2"]],
  ];
  for (const [names, unique] of examples) assert.deepEqual(uniqueNames(names), unique);
  const many = uniqueNames(new Array(20000).fill("cell"));
  assert.equal(new Set(many).size, 20000);
});
