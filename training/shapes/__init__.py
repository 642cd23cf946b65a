"""``vlm:shapes``: a small vision-language model of LLaVA's architecture, trained here on scenes of coloured shapes."""
