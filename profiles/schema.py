"""JSON Schema (2020-12) of the policy's YAML, for editors: completion, descriptions, red underlines.

With the YAML language server, a policy's first line names it:
`# yaml-language-server: $schema=policy.schema.json`.
"""

from __future__ import annotations

import json
from typing import Any

from invigilator.profiles.form import PolicyForm
from invigilator.profiles.kinds import kinds
from invigilator.profiles.policy import CLASS_DEFAULTS

ADDRESS = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema as a JSON value."""
    schema = PolicyForm.model_json_schema()
    found: dict[str, Any] = _without_null({"$schema": ADDRESS, **schema, "title": "Policy"})
    definitions = found["$defs"]
    _offer_classes(definitions)
    _offer_kinds(definitions)
    _allow_rest(found)
    _allow_text(definitions)
    return found


def text() -> str:
    """The schema as a file's text."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _without_null(value: Any) -> Any:
    """No key of a policy takes null: what is not said is left out."""
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    if not isinstance(value, dict):
        return value
    cleaned = {
        key: _without_null(item) for key, item in value.items() if not (key == "default" and item is None)
    }
    choices = [item for item in cleaned.get("anyOf", []) if item != {"type": "null"}]
    if len(choices) == 1:
        del cleaned["anyOf"]
        return {**choices[0], **cleaned}
    return cleaned


def _offer_classes(definitions: dict[str, Any]) -> None:
    table = definitions["ClassForm"]
    paths = table["properties"]["paths"]
    definitions["ClassForm"] = {"anyOf": [{k: v for k, v in paths.items() if k != "default"}, table]}
    protected = definitions["FilesystemForm"]["properties"]["protected"]
    protected["properties"] = {
        name: {"$ref": "#/$defs/ClassForm", "description": f"default: read {read}, write {write}"}
        for name, (read, write) in CLASS_DEFAULTS.items()
    }


def _offer_kinds(definitions: dict[str, Any]) -> None:
    weights = definitions["PenaltyForm"]["properties"]["weights"]
    weights["properties"] = {
        name: {
            "type": "number",
            "minimum": 0,
            "description": f"{kind.channel}; the library's weight {kind.weight:g}",
        }
        for name, kind in kinds().items()
    }
    known = {"examples": sorted(kinds())}
    for key in ("disabled", "monitor_only"):
        definitions["DetectorsForm"]["properties"][key]["items"].update(known)


def _allow_text(definitions: dict[str, Any]) -> None:
    """AppArmor's own rules may be one block of text."""
    rules = definitions["AppArmorForm"]["properties"]
    listed = {key: value for key, value in rules["raw"].items() if key != "description"}
    rules["raw"] = {"anyOf": [listed, {"type": "string"}], "description": rules["raw"]["description"]}


def _allow_rest(value: Any) -> None:
    """In any list the entry `...` may stand for the parent's entries."""
    if isinstance(value, list):
        for item in value:
            _allow_rest(item)
    elif isinstance(value, dict):
        for item in value.values():
            _allow_rest(item)
        fixed_length = "minItems" in value
        if value.get("type") == "array" and "items" in value and not fixed_length:
            value["items"] = {"anyOf": [value["items"], {"const": "..."}]}
