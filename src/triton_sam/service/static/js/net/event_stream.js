/** Server-sent events from bytes, however they are cut: within a character, a line's end or an event. */

/** A lone CR at the end of what has come may yet be followed by its LF. */
const LINE_END = /\r\n|\n|\r(?!$)/;

export class EventStream {
  constructor() {
    this._decoder = new TextDecoder();
    this._rest = "";
    this._data = [];
    this._name = "";
  }

  /** @param {Uint8Array} bytes @returns {string[]} the data of the events that are complete now */
  push(bytes) {
    return this.events(bytes).map(({ data }) => data);
  }

  /** @param {Uint8Array} bytes @returns {{name: string, data: string}[]} the events that are complete now; the name is "message" if it has none */
  events(bytes) {
    const lines = (this._rest + this._decoder.decode(bytes, { stream: true })).split(LINE_END);
    this._rest = lines.pop();
    return lines.flatMap((line) => this._take(line));
  }

  _take(line) {
    if (line) {
      const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (name === "data") this._data.push(value);
      else if (name === "event") this._name = value; // a comment has no name; other fields are not for us
      return [];
    }
    const event = { name: this._name || "message", data: this._data.join("\n") };
    const isEmpty = this._data.length === 0;
    this._data = [];
    this._name = "";
    return isEmpty ? [] : [event];
  }
}
