"""What Core ML and Core AI on real hardware are known to refuse, looked for in a bundle's packages without a Mac.

function.py      one function of a package, as the rules see it
lengths.py       its shapes at each enumerated length, inferred by ONNX independently of coremltools
shapes.py        what the rules look for in shapes, …
values.py          … in arithmetic, …
interface.py       … and in a package as a whole
rules.py         the table of rules: expectation, reason, source; and what is accepted although it breaks one
core_ai.py       one function of a Core AI program
core_ai_rules.py the rules for it: checks and table
report.py        findings, their table and their JSON
bundle.py        every package of a bundle
command.py       the command `voxcpm-coreml lint`
"""
