"""Names and texts of others are text on every page: nothing in them runs, loads or becomes markup."""

from __future__ import annotations
