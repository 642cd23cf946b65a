// Not a module: it must run before the first paint, or a dark page would flash white.
try {
  const theme = localStorage.getItem("triton-sam.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be disabled: then the system's theme is used.
}
