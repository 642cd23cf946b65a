/**
 * Reads ZIP files: stored or deflated entries, as this page and all usual programs write them. Only the directory is read;
 * an entry is a part of the file, and stays on disk until it is used.
 */
import { Problem } from "../net/problems.js";

const END_OF_CENTRAL = 0x06054b50;
const CENTRAL_HEADER = 0x02014b50;
const END_BYTES = 22;
const LONGEST_COMMENT = 0xffff;
const ENTRY_BYTES = 46;
const LOCAL_BYTES = 30;
const [STORED, DEFLATED] = [0, 8];
const UNKNOWN = 0xffffffff;

const damaged = () => new Problem("refused", "this ZIP file is damaged, or larger than 4 GB: make it again");

/**
 * @param {Blob} file
 * @returns {Promise<Map<string, () => Promise<Blob>>>} name -> contents
 * @throws {Problem} if it cannot be read
 */
export async function unzip(file) {
  const tail = await viewOf(file.slice(Math.max(0, file.size - END_BYTES - LONGEST_COMMENT)));
  let end = tail.byteLength - END_BYTES;
  while (end >= 0 && tail.getUint32(end, true) !== END_OF_CENTRAL) end -= 1;
  if (end < 0) throw damaged();
  const [count, size, offset] = [tail.getUint16(end + 10, true), tail.getUint32(end + 12, true), tail.getUint32(end + 16, true)];
  if (offset === UNKNOWN || offset + size > file.size) throw damaged();
  const directory = await viewOf(file.slice(offset, offset + size));
  const entries = new Map();
  for (let index = 0, at = 0; index < count; index += 1) {
    if (at + ENTRY_BYTES > size || directory.getUint32(at, true) !== CENTRAL_HEADER) throw damaged();
    const [nameLength, extra, comment] = [28, 30, 32].map((place) => directory.getUint16(at + place, true));
    const name = new TextDecoder().decode(new Uint8Array(directory.buffer, at + ENTRY_BYTES, nameLength));
    const entry = {
      method: directory.getUint16(at + 10, true),
      length: directory.getUint32(at + 20, true),
      start: directory.getUint32(at + 42, true),
    };
    entries.set(name, () => contents(file, entry));
    at += ENTRY_BYTES + nameLength + extra + comment;
  }
  return entries;
}

async function contents(file, { method, length, start }) {
  const local = await viewOf(file.slice(start, start + LOCAL_BYTES));
  if (local.byteLength < LOCAL_BYTES) throw damaged();
  const from = start + LOCAL_BYTES + local.getUint16(26, true) + local.getUint16(28, true);
  const part = file.slice(from, from + length);
  if (part.size !== length) throw damaged();
  if (method === STORED) return part;
  if (method !== DEFLATED) throw new Problem("refused", "this ZIP file is compressed in an unusual way: make it again, with Deflate");
  try {
    return await new Response(part.stream().pipeThrough(new DecompressionStream("deflate-raw"))).blob();
  } catch {
    throw damaged();
  }
}

const viewOf = async (blob) => new DataView(await blob.arrayBuffer());
