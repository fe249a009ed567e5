"""Reports (L4): self-contained HTML pages from results, drawn as inline SVG."""
