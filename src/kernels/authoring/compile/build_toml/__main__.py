"""Print the JSON Schema of `build.toml` for the registered backends, or write the page and the schema again.

`python -m kernels.authoring.compile.build_toml` prints; with the path of the page as its argument, it writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kernels.authoring.compile.build_toml.reference import SCHEMA_PATH, json_schema, schema_text, write_reference
from kernels.backends import all_backends

if __name__ == "__main__":
    if sys.argv[1:]:
        page = Path(sys.argv[1])
        page.write_text(write_reference(page), encoding="utf-8")
        SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
    else:
        print(json.dumps(json_schema(backend.name for backend in all_backends()), indent=2))
