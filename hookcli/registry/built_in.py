"""The built-in plugins: the module and attribute of each, by kind and name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hookcli.registry.capability import capabilities, placed

_CORE = {
    "sources": {
        "torchvision": "hookcli.sources.torchvision:TorchvisionSource",
        "timm": "hookcli.sources.timm:TimmSource",
        "hf": "hookcli.sources.huggingface:HuggingFaceSource",
        "pt2": "hookcli.sources.exported:ExportedSource",
        "importpath": "hookcli.sources.importpath:ImportPathSource",
    },
    "probes": {
        "shapes": "hookcli.probes.shapes:ShapesProbe",
        "inputs": "hookcli.probes.activations:InputsProbe",
        "activations": "hookcli.probes.activations:ActivationsProbe",
        "grads": "hookcli.probes.grads:GradsProbe",
    },
    "reporters": {
        name: f"hookcli.reporters.{'pictures' if name in ('svg', 'png') else name}:{name.title()}Reporter"
        for name in (
            *("table", "json", "csv", "markdown", "html", "dot", "chrome", "chart", "hist", "svg", "png"),
            *("junit", "sarif", "github"),
        )
    },
    "checks": {
        "HK001": "hookcli.checks.crash:Crash",
        "HK002": "hookcli.checks.finite:InputNotFinite",
        "HK003": "hookcli.checks.finite:ActivationNotFinite",
        "HK004": "hookcli.checks.finite:GradientNotFinite",
        "HK005": "hookcli.checks.finite:ParameterNotFinite",
        "HK006": "hookcli.checks.unused:NeverRan",
        "HK007": "hookcli.checks.unused:NotCalled",
        "HK008": "hookcli.checks.unused:NoGradient",
        "HK009": "hookcli.checks.zero_gradients:ZeroGradient",
        "HK010": "hookcli.checks.dead_units:DeadUnits",
        "HK011": "hookcli.checks.dead_units:SaturatedUnits",
        "HK012": "hookcli.checks.depth:VanishingGradients",
        "HK013": "hookcli.checks.depth:ExplodingGradients",
        "HK014": "hookcli.checks.depth:VanishingActivations",
        "HK015": "hookcli.checks.depth:ExplodingActivations",
        "HK016": "hookcli.checks.precision:Float16Overflow",
        "HK017": "hookcli.checks.precision:Float16Underflow",
        "HK018": "hookcli.checks.precision:Bfloat16Rounding",
        "HK019": "hookcli.checks.leftover_hooks:HooksLeft",
        "HK020": "hookcli.checks.evaluation:BatchDependence",
        "HK021": "hookcli.checks.output:UnexpectedOutput",
        "HK022": "hookcli.checks.budgets:TooManyParameters",
        "HK023": "hookcli.checks.budgets:TooManyMacs",
        "HK024": "hookcli.checks.budgets:TooMuchMemory",
        "HK025": "hookcli.checks.evaluation:Nondeterminism",
        "HK026": "hookcli.checks.evaluation:SplitBatch",
        "HK027": "hookcli.checks.output:Changed",
        "HK028": "hookcli.checks.evaluation:RandomInEval",
        "HK029": "hookcli.checks.evaluation:StateInEval",
        "HK030": "hookcli.checks.wiring:Unregistered",
        "HK031": "hookcli.checks.modes:EvalInTraining",
        "HK032": "hookcli.checks.modes:FrozenBetween",
        "HK034": "hookcli.checks.wiring:DoubleSoftmax",
        "HK035": "hookcli.checks.wiring:BiasWithoutEffect",
        "HK036": "hookcli.checks.wiring:InputChanged",
        "HK037": "hookcli.checks.wiring:PlainWeight",
        "HK038": "hookcli.checks.losses:LossNotFinite",
        "HK039": "hookcli.checks.compiling:GraphBroken",
        "HK040": "hookcli.checks.compiling:CompiledAgain",
        "HK041": "hookcli.checks.compiling:RecompileLimit",
        "HK042": "hookcli.checks.compiling:LeftUncompiled",
        "HK043": "hookcli.checks.compiling:TooManyBreaks",
        "HK044": "hookcli.checks.losses:LossJumped",
        "HK053": "hookcli.checks.training:NotInOptimizer",
        "HK054": "hookcli.checks.training:StillWeights",
        "HK055": "hookcli.checks.training:UpdateTooLarge",
    },
    "edits": {
        n: f"hookcli.hooks.edits.operations:{n}" for n in ("zero", "mean", "ones", "scale", "clamp", "noise", "square")
    }
    | {"from": "hookcli.hooks.edits.dumps:from_dump"},
}


@cache
def built_in(kind: str) -> Mapping[str, str]:
    """The built-in plugins of this kind: the core's, and the own capabilities'."""
    own = [one for one in capabilities() if one.distribution == "hookcli" and one.plugins(kind)]
    plugins = _CORE[kind] | {name: target for one in own for name, target in one.plugins(kind).items()}
    if kind == "reporters":
        return {name: plugins[name] for name in placed({"": [*_CORE[kind]]}, own)[""]}
    return dict(sorted(plugins.items())) if kind == "checks" else plugins
