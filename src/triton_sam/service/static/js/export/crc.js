/** CRC-32 as PNG and ZIP use it. */

const POLYNOMIAL = 0xedb88320;

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ POLYNOMIAL : value >>> 1;
  return value;
});

/**
 * @param {Uint8Array} bytes
 * @param {number} [before] The checksum of what came before these bytes.
 * @returns {number} From 0 to 2^32 - 1.
 */
export function crc32(bytes, before = 0) {
  let value = ~before;
  for (let index = 0; index < bytes.length; index += 1) {
    value = (value >>> 8) ^ TABLE[(value ^ bytes[index]) & 0xff];
  }
  return ~value >>> 0;
}
