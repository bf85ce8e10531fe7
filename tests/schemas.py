"""JSON schemas that the package ships, for what it prints itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema


def strict(path: Path) -> dict[str, Any]:
    """The schema, with no member allowed that it does not name."""

    def close(node: Any) -> None:
        if isinstance(node, dict):
            if "properties" in node:
                node["additionalProperties"] = False
            node = list(node.values())
        for value in node if isinstance(node, list) else ():
            close(value)

    schema: dict[str, Any] = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    close(schema)
    return schema
