"""The commands, a file for each, and what they share: options, output, progress."""

COMMANDS = {
    "shapes": "Show shapes, parameters and MACs of modules, and training memory.",
    "weights": "Show the tensors of files, or parameters and buffers of models.",
    "memory": "Show the memory that training takes: its peak, and what holds it.",
    "hooks": "List the hooks that are already registered on a model.",
    "models": "List the models of torchvision, timm or Transformers.",
    "activations": "Show statistics of every module's outputs.",
    "inputs": "Show statistics of every module's inputs.",
    "grads": "Show statistics of gradients, in order of arrival.",
    "graph": "Show the autograd graph, node by node, as backward runs it.",
    "flow": "Show how tensors flow forward; draw the architecture.",
    "spectrum": "Show the ranks of outputs and weights: their singular values.",
    "trace": "Show every hook that fires, in order, with time and memory.",
    "attention": "Show each head of attention: entropy, logits, sinks, dead heads.",
    "experts": "Show how tokens spread over a mixture of experts.",
    "sweep": "Zero each module in turn, and rank them by what that changes.",
    "check": "Check for NaN, dead units, vanishing gradients, float16 limits.",
    "explain": "Explain a check: the usual causes, and what to try.",
    "report": "Write a page about a model: figures, distributions, checks.",
    "explore": "Explore a model, a record or a saved report in the terminal.",
    "diff": "Compare two models, reports, records, dumps or files of weights.",
    "run": "Record an unmodified script, and find where a NaN begins.",
    "show": "Show a record from `hookcli run`, or a saved report.",
    "comm": "Measure what DDP's communication hooks do to gradients.",
    "package": "Export a model with torch.package; show what becomes of modules.",
    "plugins": "List all plugins, and all kinds of hooks.",
    "schema": "Print the JSON Schema of what --format json writes.",
    "skill": "Print instructions for an agent that uses hookcli.",
}
"""The first line of each command's help, by the name of the command and of its module, which need not be imported."""

QUESTIONS = {
    "What is in the model, and how big is it?": ("shapes", "flow", "memory", "weights", "hooks", "models"),
    "What flows through it, forward and backward?": (
        *("activations", "inputs", "grads", "graph", "trace"),
        *("attention", "experts", "spectrum"),
    ),
    "Is anything wrong with it?": ("check", "explain", "report", "explore"),
    "What causes its results, and did a change alter them?": ("sweep", "diff"),
    "What happens while it trains?": ("run", "show", "comm"),
    "Anything else?": ("package", "plugins", "schema", "skill"),
}
"""The commands that answer each question, for the first page of help."""
