"""Updates the generated parts of the documentation; `--check` only reports whether they are out of date.

usage: python scripts/generate_docs.py [--check] [PAGE ...]     all pages, or these

A generated part is between `<!-- generated: NAME -->` and `<!-- end -->`. The modules docs_*.py make them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import docs_faults
import docs_http
import docs_models
import docs_plots
import docs_python
import docs_reference
import docs_results
from draw_packages import PICTURE, picture

from triton_sam.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
HELM_SCHEMA = "deploy/helm/triton-sam/values.schema.json"
#: Settings that the chart sets itself or keeps in a secret, and TLS: it ends at the ingress, and probes use http.
HELM_OWN_SETTINGS = (
    "home", "url", "tritonserver", "token", "tokens_file", "ready_seconds", "device", "tls_certificate", "tls_key",
)  # fmt: skip
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
PARTS = {
    **docs_reference.PARTS,
    **docs_http.PARTS,
    **docs_python.PARTS,
    **docs_models.PARTS,
    **docs_results.PARTS,
    **docs_faults.PARTS,
}


def pages() -> list[str]:
    """Every page, from the repository's root."""
    return ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]


def rendered(text: str) -> str:
    """A page with all its generated parts updated."""
    return _PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}{match[3]}", text)


def helm_schema(text: str) -> str:
    """The chart's schema with the names of all settings, so that Helm itself refuses unknown ones."""
    document = json.loads(text)
    names = sorted(name.upper() for name in Settings.model_fields if name not in HELM_OWN_SETTINGS)
    document["properties"]["settings"]["propertyNames"]["enum"] = names
    return json.dumps(document, indent=2) + "\n"


def main() -> int:
    check = "--check" in sys.argv
    chosen = [word for word in sys.argv[1:] if not word.startswith("--")]
    drifted = []
    for name, made in {
        **dict.fromkeys(pages(), rendered),
        HELM_SCHEMA: helm_schema,
        PICTURE: picture,
        **docs_plots.PICTURES,
    }.items():
        if chosen and name not in chosen:
            continue
        page = ROOT / name
        before = page.read_text() if page.exists() else ""
        after = made(before)
        if before != after:
            drifted.append(name)
            if not check:
                page.write_text(after)
    if drifted:
        sys.stdout.write(f"{'drifted' if check else 'written'}: {', '.join(drifted)}\n")
    return 1 if check and drifted else 0


if __name__ == "__main__":
    sys.exit(main())
