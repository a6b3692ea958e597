"""The `meta` of a report: what is known of the run that it describes, as a typed mapping and, in JSON, an object.

An entry is absent if it does not apply. In a comparison, an entry is what both runs share, or `A → B` for texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal, TypedDict, TypeVar, cast

T = TypeVar("T")
RANDOM, AS_BUILT = "random", "as built"
WEIGHTS: Final = "weights"  # another word
"""The entry on the weights that a model has, and the option that names them."""
Plain = Annotated[T, "any plain value"]
"""The type of an entry that is only shown, or compared as it is: in a file, it may be any plain value."""


class Source(TypedDict, total=False):
    """The entries that a model's source, or its real input, adds."""

    weights: Plain[str | None]
    """The published weights, or their file; RANDOM; or AS_BUILT: the model's own code made or loaded them."""
    kind: Plain[str | None]
    """The kind of a torchvision model: classification, detection ..."""
    timm: Plain[str]
    """The version of timm."""
    transformers: Plain[str]
    """The version of Transformers."""
    architecture: Plain[str]
    """The class of a model of Transformers."""
    config: Plain[str]
    """The folder of a model's configuration, or the type whose defaults it has."""
    unquantized: Plain[str]
    """The method of the quantization that a model's configuration asks for, if its random weights lack it."""
    headless: Plain[str]
    """The task whose class has the head that a model of Transformers lacks, where no task was asked for."""
    exported_by: Plain[str]
    """The version of PyTorch that wrote an exported program."""
    package: Plain[str]
    """The file of a package."""
    pictures: Plain[int]
    """Number of pictures in the input."""
    transforms: Plain[str]
    """How pictures were prepared."""
    texts: Plain[int]
    """Number of texts in the input."""
    tokenizer: Plain[str]
    """The class of the tokenizer of texts."""
    same_weights: Plain[bool]
    """True if the second model of a comparison got the first one's weights."""
    plugin: Mapping[str, object]
    """A plugin's entries, under names that it chooses. Their values can be saved as JSON."""


class Meta(Source, total=False):
    """All entries. A run's come first, in the order of JSON files; the source's are among them, after `seed`."""

    torch: Plain[str]
    """The version of PyTorch."""
    device: str | None
    """The model's device: cpu, cuda:0, meta ..."""
    dtype: str
    """The dtype of the model's parameters, such as float32."""
    mode: str | None
    """train or eval; over the steps of a record, their phase."""
    input: str | None
    """Shapes and dtypes of the input, or its source."""
    batch: Plain[int]
    """First dimension of the first input; the number of inputs if each is one item."""
    data: Plain[str]
    """The option that named the real input, as typed."""
    batches: Plain[int]
    """Number of batches that were run to their end, where several were asked for."""
    target: Plain[str]
    """Shapes of the target in each batch of real input, and who got it."""
    not_on_meta: Plain[str]
    """Why the model had to run for real although shapes alone were asked for."""
    simulated: str | None
    """The device whose memory is computed, where that is not the CPU's."""
    fill: Plain[str]
    """How a generated input was filled: randn, ones ..."""
    seed: Plain[int]
    """The seed of weights and generated input."""
    torchvision: Plain[str]
    """The version of torchvision, if it was imported."""
    processes: int
    """Number of processes that ran the model together."""
    rank: int | Sequence[int] | None
    """The process, or those whose rows are shown beside each other."""
    backend: Plain[str]
    """The backend of torch.distributed."""
    parallel: str | None
    """How the processes share the model: ddp, fsdp ..."""
    fastpath: Plain[bool]
    """True if attention may take PyTorch's fused path."""
    sweep: Plain[str]
    """What was done to each module, head or expert in turn."""
    ops: Plain[str]
    """The operators that have rows beside the modules: "functions" or "aten"."""
    edits: Sequence[str]
    """The edits of tensors (--edit)."""
    compiled: Plain[str]
    """How modules ran that torch.compile has compiled."""
    input_requires_grad: Plain[bool]
    """True if gradients were computed for the model's inputs."""
    gradients: Plain[str]
    """Why gradients were on in a run that takes none: the model computes some in its forward."""
    optimizer: Plain[str]
    """The optimizer whose step was taken."""
    amp: Plain[str]
    """The precision of `torch.autocast`, where it is simulated, or one side of a comparison ran under it."""
    call: Plain[str]
    """The function that computed gradients, if not `backward`."""
    backward_vector: Plain[str]
    """The vector of a vector-Jacobian product: ones or randn."""
    loss: str
    """The loss that was differentiated."""
    no_own_loss: str
    """Why the `loss` that the model returned was not differentiated."""
    loss_reduction: Plain[str]
    """How the processes' losses make one: mean."""
    loss_value: float | None
    """The loss, over batches their mean; None on the meta device."""
    random: Plain[str]
    """Who drew random numbers, where several processes did."""
    error: str | None
    """The first line of the error that ended the run."""
    seconds: float
    """Duration of the run, in seconds."""
    hookcli_seconds: float
    """Seconds of `seconds` that hookcli's own work took."""
    complete: Plain[bool]
    """False if the run ended early; absent means True."""
    containers: Sequence[str]
    """Names of modules that are not a level of depth; see hookcli.table.names."""
    notes: Sequence[str]
    """Remarks on how to read the figures."""
    # Of commands.
    next: str
    """The command to type next."""
    cached: Plain[bool]
    """True for a report that an earlier run made."""
    checks: Sequence[str]
    """The ids of the checks that ran."""
    fail_on: Literal["error", "warning"]
    """The lowest severity of a finding that makes the check fail; absent means error."""
    format: str
    """The format of a file of tensors."""
    metadata: Mapping[str, object]
    """The metadata in a file of tensors."""
    exported: Plain[bool]
    """True if the package was also exported as one program."""
    steps: Plain[int]
    """Number of steps of DistributedDataParallel under each communication hook."""
    no_sync: Plain[int]
    """Number of backward passes without communication before each of these steps."""
    bucket_cap_mb: Plain[float | None]
    """The size of DistributedDataParallel's buckets in MiB; None: PyTorch's own."""
    ddp: Mapping[str, object]
    """DistributedDataParallel's own log, by communication hook."""

    # Of a recorded step.
    phase: str | None
    """train, eval or no_grad."""
    step: int
    """The step's number, from 0."""
    found_at: Mapping[str, int]
    """The steps of the findings that stay, by check."""
    forward: int | None
    """Number of a forward without gradients, counted from the last step; None for a step."""
    forwards: int
    """Number of forwards in the step."""
    observed_forwards: int
    """Number of forwards that were measured."""
    losses: Sequence[float]
    """The loss of each backward pass."""
    loss_of_steps: Sequence[Sequence[Sequence[float]]]
    """Number and loss of each step of a history, recorded or not; of the records beside it, too."""
    clock: Sequence[Sequence[Sequence[float]]]
    """Number of each recorded step of a history, and seconds since its run began; of the records beside it, too."""
    x: str
    """The axis of charts: "time", else steps."""
    smooth: int
    """Number of steps over which charts show means."""
    plain_seconds: float | None
    """Duration of the same step without hooks, in seconds; None if unknown."""
    replicas: int
    """Number of processes over which gradients are averaged."""
    tensor_parallel: Sequence[int]
    """The ranks between which tensor parallel divides the model."""

    # Of a whole record.
    script: Plain[str]
    """The recorded program."""
    command: Plain[str]
    """Its command line."""
    started: Plain[str]
    """When it began, in ISO 8601."""
    every: Plain[int]
    """Every so many steps, one was recorded."""
    python: Plain[str]
    """The version of Python."""
    hookcli: Plain[str]
    """The version of hookcli."""

    # Of a comparison.
    a: Meta
    """The `meta` of the first side."""
    b: Meta
    """The `meta` of the second side."""
    record: Plain[str]
    """Path of the record that is one side of a comparison."""
    compile: Plain[str]
    """Modules of one side that torch.compile has compiled."""
    attention: Plain[str]
    """The kernel by which one side computed scaled_dot_product_attention."""
    against: Mapping[str, str]
    """The paths of records whose steps are beside each other, as `a`, `b` ..."""
    of: Plain[str]
    """The probe of two saved reports."""
    dump: Plain[str]
    """The probes of a dump."""
    side: Plain[str]
    """The side of a comparison that the report is of: a or b."""
    rtol: Plain[float | None]
    """The relative tolerance; None: the dtype's own."""
    atol: Plain[float | None]
    """The absolute tolerance; None: the dtype's own."""
    different_models: Plain[bool]
    """True if two records are of different models, of which only whole figures are compared."""


_ORDER = {key: number for number, key in enumerate(Meta.__annotations__) if key not in Source.__annotations__}
_OF_SOURCE = _ORDER["seed"] + 0.5


def in_order(meta: Meta) -> Meta:
    """The entries in the order in which JSON files have them; a source's keep theirs."""
    return made(sorted(meta.items(), key=lambda item: _ORDER.get(item[0], _OF_SOURCE)))


def only(meta: Meta, *keys: str) -> Meta:
    """These entries, as far as there are any."""
    return made((key, value) for key, value in meta.items() if key in keys)


def without(meta: Meta, *keys: str) -> Meta:
    """All entries but these."""
    return made((key, value) for key, value in meta.items() if key not in keys)


def with_notes(meta: Meta, *notes: str) -> Meta:
    """The entries with these notes after the others."""
    return {**meta, "notes": [*meta.get("notes", ()), *notes]} if notes else meta


def made(entries: Iterable[tuple[str, object]]) -> Meta:
    """These entries, whose types nobody has checked."""
    return cast("Meta", dict(entries))
