/** Project files are dropped or opened as any other file. What reads them is loaded when the first one comes. */
import { registerImporter } from "../importers.js";

const isZip = (head) => head[0] === 0x50 && head[1] === 0x4b && (head[2] === 3 || head[2] === 5);

export function startProjectFiles() {
  registerImporter({
    accepts: (file, head) => isZip(head) && /\.zip$/i.test(file.name),
    run: async (app, file) => (await import("./file_reading.js")).readProject(app, file),
    endings: ".zip",
  });
}
