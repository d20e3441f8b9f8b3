"""Print the JSON Schema of `build.toml` for the registered backends."""

from __future__ import annotations

import json

from kernels.authoring.compile.build_toml.reference import json_schema
from kernels.backends import all_backends

if __name__ == "__main__":
    print(json.dumps(json_schema(backend.name for backend in all_backends()), indent=2))
