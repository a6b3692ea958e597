"""The commands, a file for each, and what they share: options, output, progress."""

from hookcli.registry.capability import capabilities, placed

_CORE = {
    "shapes": "Show shapes, parameters and MACs of modules, and training memory.",
    "hooks": "List the hooks that are already registered on a model.",
    "models": "List the models of torchvision, timm or Transformers.",
    "activations": "Show statistics of every module's outputs.",
    "inputs": "Show statistics of every module's inputs.",
    "grads": "Show statistics of gradients, in order of arrival.",
    "check": "Check for NaN, dead units, vanishing gradients, float16 limits.",
    "explain": "Explain a check: the usual causes, and what to try.",
    "report": "Write a page about a model: figures, distributions, checks.",
    "diff": "Compare two models, reports, records, dumps or files of weights.",
    "run": "Record an unmodified script, and find where a NaN begins.",
    "show": "Show a record from `hookcli run`, or a saved report.",
    "plugins": "List all plugins, and all kinds of hooks.",
    "schema": "Print the JSON Schema of what --format json writes.",
    "skill": "Print instructions for an agent that uses hookcli.",
}
_QUESTIONS = {
    "What is in the model, and how big is it?": ("shapes", "hooks", "models"),
    "What flows through it, forward and backward?": ("activations", "inputs", "grads"),
    "Is anything wrong with it?": ("check", "explain", "report"),
    "What causes its results, and did a change alter them?": ("diff",),
    "What happens while it trains?": ("run", "show"),
    "Anything else?": ("plugins", "schema", "skill"),
}
_OF_CAPABILITIES = [one for one in capabilities() if one.probe or one.command]
QUESTIONS = placed(_QUESTIONS, _OF_CAPABILITIES)
"""The commands that answer each question, for the first page of help."""
_SUMMARIES = _CORE | {one.name: one.summary for one in _OF_CAPABILITIES}
COMMANDS = {name: _SUMMARIES[name] for name in (*placed({"": [*_CORE]}, _OF_CAPABILITIES)[""],)}
"""The first line of each command's help, by its name."""
MODULES = {name: f"hookcli.commands.{name}" for name in _CORE} | {one.name: one.command for one in _OF_CAPABILITIES}
"""The module of each command, which has a function of its name, and need not be imported; "" for a probe as it is."""
