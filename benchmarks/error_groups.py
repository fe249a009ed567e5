"""Groups of labelled structures: recipe, reason for being held out, kind, sampling method, adsorbate, metal.

The groups are derived from the recipe and from the metadata that `faenet-calc data generate` stores with the labels.
"""

from collections.abc import Mapping
from typing import Any

from faenet_calc.labelling.recipe import HeldOutRule, Recipe

Group = tuple[str, str]

ALL: Group = ("all", "")
GROUP_KINDS = ("all", "domain", "recipe", "why", "kind", "how", "adsorbate", "metal")
SEEN = ("train", "val")


def rule_word(rule: HeldOutRule) -> str:
    """Short description of a held-out rule."""
    if rule.adsorbate is not None:
        return "unseen pair"
    if rule.facet is not None:
        return "unseen facet"
    return "unseen alloy" if sum(letter.isupper() for letter in rule.substrate or "") > 1 else "unseen metal"


def reasons(info: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """Rules of the recipe by which a structure was held out; "other" if none matches.

    Empty for training and validation structures (split=train or val) and for structures of other recipes.
    """
    made_by = str(info.get("recipe", "")).partition(":")[0]
    if made_by != recipe.name or info.get("split") in SEEN:
        return []
    said = {
        "substrate": str(info.get("metal", "")).replace("-", ""),
        "facet": info.get("facet"),
        "adsorbate": info.get("adsorbate"),
    }
    found = [
        rule_word(rule)
        for rule in recipe.heldout
        if all(getattr(rule, word) in (None, value) for word, value in said.items())
    ]
    return list(dict.fromkeys(found)) or ["other"]


def structure_kind(info: Mapping[str, Any]) -> str | None:
    """Kind of a structure (adsorbate, clean, bulk or gas) from the name of its system; None without a name."""
    words = str(info.get("system", "")).split("_")
    if len(words) < 2:
        return None
    return "gas" if words[0] == "gas" else {"bulk": "bulk", "clean": "clean"}.get(words[-1], "adsorbate")


def groups_of(info: Mapping[str, Any], recipe: Recipe) -> list[Group]:
    """Groups to which a structure belongs."""
    groups = [ALL, *(("why", word) for word in reasons(info, recipe))]
    if "recipe" in info:
        groups.append(("recipe", str(info["recipe"]).partition(":")[0]))
    kind = structure_kind(info)
    if kind is not None:
        groups.append(("kind", kind))
    if "how" in info:
        groups.append(("how", str(info["how"])))
    if kind == "adsorbate":
        groups.append(("adsorbate", str(info.get("adsorbate"))))
    if kind in ("adsorbate", "clean", "bulk"):
        groups.append(("metal", str(info.get("metal"))))
    return groups
