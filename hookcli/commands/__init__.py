"""The commands, a file for each, and what they share: options, output, progress."""

COMMANDS = {
    "shapes": "Shapes, parameters and MACs of every module.",
    "inputs": "Statistics of what every module receives.",
    "activations": "Statistics of what every module returns.",
    "grads": "Statistics of gradients, in the order of arrival.",
    "graph": "The autograd graph, node by node, as backward runs it.",
    "trace": "Every hook that fires, in order, with the time.",
    "run": "Look inside a script that stays as it is.",
    "comm": "What DDP's communication hooks make of gradients, bucket by bucket.",
    "check": "Run models once, forward and backward, and judge what was seen.",
    "explain": "What a check looks for, what a finding usually means, and what to try.",
    "diff": "Where two models, or two saved reports, part ways.",
    "hooks": "Every hook that a model already carries.",
    "package": "Export a model with torch.package, and see which modules went which way.",
    "show": "What a record of hookcli run holds, or a saved report, in any format.",
    "models": "Every torchvision model, with its natural input.",
    "plugins": "Every plugin, and the distribution it is from.",
}
"""The first line of each command's help, by the name of the command and of its module, which need not be imported."""
