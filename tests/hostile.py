"""Names and texts that are not meant well: for terminals, and for pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Cli = Callable[..., Any]

RUN = "window.ran=1"
"""The script that hostile names carry; a test asks whether it ran."""

MARKUP = (
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<!--<script>{RUN}//",
    f"-->{RUN}<!--",
    f"]]><script>{RUN}</script>",
    f'"><img src=x onerror={RUN}>',
    f"'><svg onload={RUN}>",
    f"javascript:{RUN}",
    f"</style><script>{RUN}</script>",
    f"</noscript><script>{RUN}</script>",
    f"</title><script>{RUN}</script>",
    f'" onmouseover="{RUN}" autofocus onfocus="{RUN}',
    f"${{{RUN}}}`;{RUN}//",
    f"';{RUN}//",
    f"\\u003cscript>{RUN}\\u003c/script>",
    "&lt;b&gt;&amp;&#x3c;",
    "line\u2028sep\u2029ara\x85tor",
    "\x00\x07\x1b[2J\x9b31m\x7f",
    "\u202egnp.eman\u2066\u200f",
    "\ud800lone",
    "x" * 10_000,
    "__proto__",
    "constructor",
    "toString",
    "hasOwnProperty",
    "__proto__.polluted",
    "url(https://example.invalid/x)",
    "https://example.invalid/",
    "//example.invalid/x",
    "={{constructor.constructor('window.ran=1')()}}",
)
"""Names that are markup, scripts, addresses or JavaScript's own, each for a module, type or message."""
