"""Acme's folder: who they are, and beside this file their operators, tune configurations and heuristics."""

from kernels import VendorInfo

vendor_info = VendorInfo(
    vendor_name="acme",
    device_name="acme",
    device_query_cmd="acme-smi",
    dispatch_key="PrivateUse1",
    version={"command": ["acme-smi"], "pattern": "runtime ([0-9]+\\.[0-9]+)"},
    archs={"command": ["acme-smi"], "pattern": "^device [0-9]+: (.+)$"},
)
