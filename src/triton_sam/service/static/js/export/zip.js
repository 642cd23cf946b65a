/** Writes ZIP files without compression: the contents are small or already compressed. */

import { crc32 } from "./crc.js";

const LOCAL_HEADER = 0x04034b50;
const CENTRAL_HEADER = 0x02014b50;
const END_OF_CENTRAL = 0x06054b50;
const VERSION = 20;
const NAMES_ARE_UTF8 = 0x0800;
const STORED = 0;
const MOST_ENTRIES = 0xffff;
const MOST_BYTES = 0xffffffff;

/**
 * @param {Array<{name: string, blob: Blob}>} entries Names with / for folders, all different.
 * @param {Date} [modified] The time that all entries get.
 * @returns {Promise<Blob>} Of type application/zip.
 */
export async function zip(entries, modified = new Date()) {
  if (entries.length > MOST_ENTRIES) throw new Error(`A ZIP file holds ${MOST_ENTRIES} files at most.`);
  const stamp = dosTime(modified);
  const parts = [];
  const central = [];
  let offset = 0;
  for (const { name, blob } of entries) {
    const nameBytes = new TextEncoder().encode(name);
    const shared = entryFields(nameBytes, blob.size, await checksum(blob), stamp);
    const local = [...fields([4, LOCAL_HEADER], ...shared), nameBytes];
    const noComment = [[2, 0], [2, 0], [2, 0], [4, 0]];
    const head = fields([4, CENTRAL_HEADER], [2, VERSION], ...shared, ...noComment, [4, offset]);
    central.push(...head, nameBytes);
    parts.push(...local, blob);
    offset += sizeOf(local) + blob.size;
    if (offset > MOST_BYTES) throw new Error("A ZIP file holds 4 GB at most here: export fewer at once.");
  }
  const oneDisk = [[2, 0], [2, 0], [2, entries.length], [2, entries.length]];
  const end = fields([4, END_OF_CENTRAL], ...oneDisk, [4, sizeOf(central)], [4, offset], [2, 0]);
  return new Blob([...parts, ...central, ...end], { type: "application/zip" });
}

/** What the local and the central header of an entry have in common, as [bytes, value]. */
function entryFields(nameBytes, size, crc, [time, date]) {
  return [
    [2, VERSION],
    [2, NAMES_ARE_UTF8],
    [2, STORED],
    [2, time],
    [2, date],
    [4, crc],
    [4, size],
    [4, size],
    [2, nameBytes.length],
    [2, 0],
  ];
}

/** Little endian numbers, each given as [bytes, value]. */
function fields(...pairs) {
  const view = new DataView(new ArrayBuffer(pairs.reduce((sum, [bytes]) => sum + bytes, 0)));
  let at = 0;
  for (const [bytes, value] of pairs) {
    if (bytes === 4) view.setUint32(at, value, true);
    else view.setUint16(at, value, true);
    at += bytes;
  }
  return [new Uint8Array(view.buffer)];
}

function sizeOf(arrays) {
  return arrays.reduce((sum, array) => sum + array.length, 0);
}

/** Reads a stream: a blob may be on disk and too large for memory. */
async function checksum(blob) {
  const reader = blob.stream().getReader();
  let crc = 0;
  for (let next = await reader.read(); !next.done; next = await reader.read()) crc = crc32(next.value, crc);
  return crc;
}

/** MS-DOS's time and date, local time, steps of 2 seconds; it begins in 1980. */
function dosTime(moment) {
  const year = Math.min(Math.max(moment.getFullYear() - 1980, 0), 127);
  const time = (moment.getHours() << 11) | (moment.getMinutes() << 5) | (moment.getSeconds() >> 1);
  return [time, (year << 9) | ((moment.getMonth() + 1) << 5) | moment.getDate()];
}
