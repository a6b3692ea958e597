"""A limit on the parameters that are zero, which `check` has an option for."""

from hookcli.registry.capability import Capability

CAPABILITY = Capability(
    name="zeros",
    page="https://example.org/zeros",
    checks={"ZEROS": "hookcli_signs.zeros_check:TooManyZeros"},
    check_options="hookcli_signs.zeros_options:ZerosOptions",
    measures="hookcli_signs.zeros_count:count",
)
