"""Checks a CycloneDX document against the schema of its version, with the library of the standard's authors."""

import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

with open(sys.argv[1], encoding="utf-8") as file:
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(file.read())
if fault:
    sys.exit(f"{sys.argv[1]}: {fault}")
print("valid")
