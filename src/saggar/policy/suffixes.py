"""Under which names do unrelated owners live? The Public Suffix List, its private section included.

Loaded on the first wildcard of a policy: the list is 300 KB and takes tens of milliseconds.
"""

from __future__ import annotations

from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList


@lru_cache(maxsize=1)
def _list() -> PublicSuffixList:
    from publicsuffixlist import PublicSuffixList

    return PublicSuffixList(only_icann=False)


@lru_cache(maxsize=1)
def _rules() -> frozenset[str]:
    suffixes: frozenset[str] = frozenset(_list()._publicsuffix)
    return suffixes


def covering_suffix(base: str) -> str:
    """The public suffix that `base` (canonical, no wildcard) is, or stands above; "" where it is neither."""
    if _list().is_public(base):
        return base
    below = "." + base
    suffixes = (rule.lstrip("*.!") for rule in _rules() if rule.endswith(below))
    return min(suffixes, key=lambda s: (len(s), s), default="")
