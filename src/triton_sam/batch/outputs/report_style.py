"""The style sheet of the report: the web page's colours, light and dark, wide and narrow."""

STYLE = """
:root { color-scheme: light dark; --ground: #eef1f5; --surface: #fff; --line: #d5dbe3; --text: #15202b;
  --quiet: #4d5966; --accent: #0b5cc2; --good: #1a7f37; --bad: #b3261e; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #0d1218; --surface: #151c24; --line: #2b3742; --text: #e7edf3;
    --quiet: #a3b0bd; --accent: #7ab8ff; --good: #6fd58b; --bad: #ff8f87; --warn: #f0c060; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 12px; }
a { color: var(--accent); }
section { background: var(--surface); border: 1px solid var(--line); border-radius: 12px; padding: 16px;
  margin-top: 16px; }
.quiet { color: var(--quiet); margin: 0; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin: 16px 0 0; }
.tiles div { background: var(--surface); border: 1px solid var(--line); border-radius: 12px; padding: 12px 14px; }
.tiles dt { color: var(--quiet); font-size: 13px; }
.tiles dd { margin: 0; font-size: 20px; white-space: nowrap; font-weight: 600; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 24px 32px; }
figure { margin: 0; min-width: 0; }
.charts figcaption { font-weight: 600; font-size: 14px; }
.charts figcaption span { font-weight: 400; color: var(--quiet); display: block; }
svg { display: block; width: 100%; max-width: 460px; height: auto; }
.bar { fill: var(--accent); } .axis { stroke: var(--quiet); } .grid { stroke: var(--line); stroke-dasharray: 3 3; }
.tick { fill: var(--quiet); font-size: 11px; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 6px 12px 6px 0; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; }
tr:first-child > * { border-top: 0; }
th { font-weight: 400; color: var(--quiet); width: 12em; }
td.count, th.count { width: 6em; text-align: right; font-variant-numeric: tabular-nums; }
td.count, .failures td:first-child { padding-right: 16px; }
summary { cursor: pointer; color: var(--quiet); }
details ul { margin: 4px 0 0; padding-left: 20px; }
.files { display: flex; flex-wrap: wrap; gap: 8px 20px; margin: 0; padding: 0; list-style: none; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(160px, 1fr)); gap: 14px; }
.sheet img { display: block; width: 100%; height: 160px; object-fit: contain; background: var(--ground);
  border-radius: 6px; }
.sheet figcaption { font-size: 13px; overflow-wrap: anywhere; }
.sheet figcaption span { color: var(--quiet); display: block; }
footer { margin-top: 16px; color: var(--quiet); font-size: 13px; }
@media (max-width: 520px) {
  main { padding: 16px 10px 32px; }
  .tiles { grid-template-columns: repeat(2, 1fr); gap: 8px; }
  .tiles div { padding: 10px 12px; }
  .tiles dd { font-size: 19px; }
  th { width: 8em; }
  .sheet { grid-template-columns: repeat(2, 1fr); gap: 10px; }
}
@media print { body { background: #fff; } section, .tiles div { break-inside: avoid; } }
"""
