"""The commands, a file for each, and what they share: options, output, progress."""

COMMANDS = {
    "shapes": "Show shapes, parameters and MACs of every module.",
    "inputs": "Show statistics of every module's inputs.",
    "activations": "Show statistics of every module's outputs.",
    "grads": "Show statistics of gradients, in order of arrival.",
    "graph": "Show the autograd graph, node by node, as backward runs it.",
    "trace": "Show every hook that fires, in order, with its time.",
    "run": "Record what happens inside the models of an unmodified script.",
    "comm": "Measure what DDP's communication hooks do to gradients, by bucket.",
    "check": "Run models once, forward and backward, and check them for problems.",
    "explain": "Explain what checks look for, what usually causes a finding, and what to try.",
    "diff": "Compare two models (or saved reports, or records) and find where they diverge.",
    "hooks": "List the hooks that are already registered on a model.",
    "package": "Export a model with torch.package and show what became of each module.",
    "show": "Show a record from `hookcli run`, or a saved report.",
    "models": "List torchvision's models, with their parameters and default inputs.",
    "plugins": "List all plugins and the distributions that provide them.",
}
"""The first line of each command's help, by the name of the command and of its module, which need not be imported."""
