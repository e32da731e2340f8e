"""Is one constraint narrower than (or equal to) another?

I1  Sound: `narrower(c, p)` implies that `p` allows every value that `c` allows. Attenuation rests on this alone.
I2  Decided, never searched: time is linear in the constraints' size (quadratic in the parts of two `All`).
I3  Reflexive; and transitive within one class.

"No" may be said of a pair that is in fact narrower (a prefix within an intersection of three others, say): the holder
then writes the child in the parent's own terms. "Yes" is never said of a pair that is not.
"""

from __future__ import annotations

from saggar.capability.constraint import (
    All,
    AnyValue,
    Cidr,
    Constraint,
    EachItem,
    Exact,
    Glob,
    MaxLength,
    OneOf,
    PathUnder,
    Prefix,
    Range,
    UrlMatch,
    star_fits,
)
from saggar.capability.values import parse_network


def narrower(child: Constraint, parent: Constraint) -> bool:
    """Does `parent` allow all that `child` allows? Sound (I1)."""
    if isinstance(parent, AnyValue):
        return True
    if isinstance(parent, All):
        return all(narrower(child, part) for part in parent.parts)
    if isinstance(child, All):
        return any(narrower(part, parent) for part in child.parts)
    if isinstance(child, Exact):
        return parent.allows(child.value)
    if isinstance(child, OneOf):
        return all(parent.allows(value) for value in child.values)
    if isinstance(child, Range):
        return isinstance(parent, Range) and _range(child, parent)
    if isinstance(child, Prefix):
        return isinstance(parent, Prefix) and child.text.startswith(parent.text)
    if isinstance(child, Glob):
        return _glob(child, parent)
    if isinstance(child, Cidr):
        return isinstance(parent, Cidr) and _cidr(child, parent)
    if isinstance(child, UrlMatch):
        return isinstance(parent, UrlMatch) and _url(child, parent)
    if isinstance(child, PathUnder):
        return _path(child, parent)
    if isinstance(child, MaxLength):
        return isinstance(parent, MaxLength) and child.size <= parent.size
    if isinstance(child, EachItem):
        return isinstance(parent, EachItem) and narrower(child.inner, parent.inner)
    return False


def _range(child: Range, parent: Range) -> bool:
    if parent.low is not None and (child.low is None or child.low < parent.low):
        return False
    return parent.high is None or (child.high is not None and child.high <= parent.high)


def _glob(child: Glob, parent: Constraint) -> bool:
    if isinstance(parent, Prefix):
        return child.before.startswith(parent.text)
    if not isinstance(parent, Glob):
        return False
    if not (child.before.startswith(parent.before) and child.after.endswith(parent.after)):
        return False
    # what the child fixes and the parent leaves to its star must be fit for a star
    left = child.before[len(parent.before) :]
    right = child.after[: len(child.after) - len(parent.after)]
    return star_fits(left) and star_fits(right)


def _cidr(child: Cidr, parent: Cidr) -> bool:
    inner, outer = parse_network(child.network), parse_network(parent.network)
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]  # one version


def _url(child: UrlMatch, parent: UrlMatch) -> bool:
    if child.scheme != parent.scheme or child.port != parent.port:
        return False
    # one more label than a wildcard's own name; another wildcard has another name behind its star
    beneath = parent.host.startswith("*.") and child.host.partition(".")[2] == parent.host[2:]
    if child.host != parent.host and not beneath:
        return False
    base, mode = child.split()
    outer, outer_mode = parent.split()
    stem = outer if outer.endswith("/") else outer + "/"
    if outer_mode == "exact":
        return mode == "exact" and base == outer
    if outer_mode == "under":
        return base == outer or base.startswith(stem)
    rest = base.removeprefix(stem)
    if mode == "exact":
        return bool(rest) and "/" not in rest  # a path that does not begin with the stem keeps its first slash
    return mode == "child" and base == outer


def _path(child: PathUnder, parent: Constraint) -> bool:
    if isinstance(parent, Prefix):
        return child.root.startswith(parent.text)
    if not isinstance(parent, PathUnder):
        return False
    return parent.root in ("/", child.root) or child.root.startswith(parent.root + "/")
