"""What depends on the other items of a batch, and what a run leaves in a model."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from checks.broken import Counts, Dropped, Fn, Noisy, biased, tower, wide
from support import each_once, untouched
from torch import Tensor, nn

from hookcli import check


class Adapter(nn.Linear):
    """Merges what it adds into its weight in eval mode and takes it out in training mode, as loralib's layers do."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("added", torch.ones(4, 4))
        self.merged = False

    def train(self, mode: bool = True) -> Any:
        if mode == self.merged:
            self.weight.data += self.added * (-1 if mode else 1)
            self.merged = not mode
        return super().train(mode)


@pytest.mark.parametrize("frozen", [False, True])
def test_modes_are_gone_back_to_the_way_they_were_left(frozen: bool) -> None:
    model = nn.Sequential(Adapter(), nn.Dropout(), nn.Linear(4, 2)).train()
    model[1].train(not frozen)
    weight = model[0].weight.detach().clone()
    check(model, torch.randn(8, 4), select=["HK020", "HK022"], thresholds={"max-params": 1000})
    assert not model[0].merged and torch.equal(model[0].weight, weight)
    assert [module.training for module in model.modules()] == [True, True, not frozen, True]


class Sequences(nn.Module):
    """Takes lengths, of which none may be 0."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.rnn(packed)[1][0][-1])


def test_the_other_items_are_such_as_the_model_takes() -> None:
    inputs = (torch.randn(3, 5, 4), torch.tensor([5, 4, 2]))
    inverse = Fn(lambda y: torch.linalg.inv(y.view(-1, 2, 2)).flatten(1))
    for model, x in ((Sequences(), inputs), (inverse, torch.randn(3, 4))):
        report = check(model, x, select="HK020")
        assert report.findings == [] and report.meta["checks"] == ["HK020"]


def test_a_model_that_refuses_other_items_is_not_judged() -> None:
    def ordered(y: Tensor) -> Tensor:
        if len(y.unique(dim=0)) < len(y):
            raise ValueError("two items are alike")
        return y

    report = check(Fn(ordered), torch.randn(3, 4), select="HK020")
    [skipped] = [item.reason for item in report.skipped if item.fqn.startswith("HK020")]
    assert report.findings == [] and skipped.startswith("not judged: with other items in the batch, ")
    assert "two items are alike" in skipped


class TrainsOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head, self.unused = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x) if self.training else self.layer(x)[:, :3])


@pytest.mark.parametrize("how", [{}, {"thresholds": {"max-macs": 1}}, {"ignore": ["HK020", "HK001"], "save": "b.json"}])
def test_failing_in_eval_mode_alone(how: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, x = TrainsOnly(), torch.randn(8, 4)
    with untouched(model):
        report = check(model, x, **how)
    assert [finding.check for finding in report.findings] == ["HK001", "HK006", "HK008"]
    assert report.findings[0].fqn == "head" and report.findings[0].message.startswith("in eval mode: head (Linear) fai")
    reasons = {item.fqn.split()[0]: item.reason for item in report.skipped}
    if "thresholds" in how:
        assert reasons["HK023"] == reasons["HK020"] == "not judged: the model fails in eval mode"
    assert not (tmp_path / "b.json").exists()


def recurrent(batch_first: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4, bidirectional=True, batch_first=batch_first))


@pytest.mark.parametrize("kind", ["inside", "root", "encoder", "quantized"])
def test_what_may_mix_the_batch_is_a_warning(kind: str) -> None:
    torch.manual_seed(0)
    model = {
        "inside": lambda: recurrent(False),
        "root": lambda: nn.LSTM(4, 4, bidirectional=True),
        "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2, enable_nested_tensor=False),
        "quantized": lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear}),
    }[kind]()
    x = torch.randn(6, 3, 4) if kind != "quantized" else torch.randn(6, 4) * torch.tensor([[0.01], *[[9.0]] * 5])
    [finding] = check(model, x, select="HK020", thresholds={"HK020": 1e-6}).findings
    assert finding.severity == "warning" and ("batch_first=False" in finding.message) == (kind != "quantized")
    assert finding.remedy == "ignore it if that is meant, else put the batch into dimension 0"
    assert check(recurrent(True), torch.randn(6, 3, 4), select="HK020").findings == []


def prepared() -> nn.Module:
    """A model as PyTorch prepares it for quantization-aware training; its observers have seen nothing yet."""
    quantization = torch.ao.quantization
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).train()
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    return quantization.prepare_qat(model)


def observed(model: nn.Module, x: Tensor) -> nn.Module:
    """The model with observers that have seen a batch, and are disabled."""
    model(x)
    return model.apply(torch.ao.quantization.disable_observer)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_observers_that_are_enabled_are_told_from_what_mixes_the_batch() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4) * torch.tensor([[0.01], *[[9.0]] * 5])
    [finding] = check(prepared(), x, select="HK020").findings
    assert finding.severity == "warning" and "observer takes in the range of the whole batch" in finding.message
    assert check(observed(prepared(), x), x, select="HK020").findings == []
    mixing = nn.Sequential(Fn(lambda y: y - y.mean(0)), prepared())
    [finding] = check(mixing, x, select="HK020").findings
    assert finding.severity == "error"


class Running(nn.Module):
    """Takes in the mean of the whole batch in eval mode, too, and is not an observer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = x.detach().mean(0)
        return x - self.mean


def test_a_buffer_that_changes_in_eval_mode_excuses_nothing_else() -> None:
    [finding] = check(nn.Sequential(nn.Linear(4, 4), Running()), torch.randn(6, 4), select="HK020").findings
    assert (finding.fqn, finding.severity) == ("1", "error")


@pytest.mark.parametrize("mixes", [False, True])
def test_a_state_with_as_many_layers_as_items_has_its_batch_elsewhere(mixes: bool) -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 4, num_layers=2, batch_first=True), Fn(lambda y: y - mixes * y.mean(0))

        def forward(self, x: Tensor) -> Any:
            y, state = self.lstm(x)
            return self.head(y), state

    torch.manual_seed(0)
    findings = check(Stateful(), torch.randn(2, 3, 4), select="HK020").findings
    assert [found.fqn for found in findings] == ["head"] * mixes


class Scale(nn.Module):
    """LayerScale, or what is left of RMSNorm: features are in the last dimension, and stay there."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((8,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def test_scaling_by_zero_is_not_dead() -> None:
    model = nn.Sequential(nn.Linear(4, 8), Scale(0.0), nn.Linear(8, 2))
    assert check(model, torch.randn(16, 4), select="HK010").findings == []


def test_a_norm_of_ones_own_leaves_channels_where_they_are() -> None:
    linear, relu, head = biased(nn.ReLU(), 7)
    model = nn.Sequential(linear, Scale(1.0), relu, head)
    [finding] = check(model, torch.randn(4, 10, 4), select="HK010").findings
    assert finding.fqn == "2" and finding.message.startswith("7 of 8 channels ")


def test_a_phase_that_depends_on_the_batch_is_seen_though_all_magnitudes_are_1() -> None:
    model = Fn(lambda y: torch.polar(torch.ones_like(y), y.sum(0, keepdim=True).expand_as(y)).conj())
    [finding] = check(model, torch.randn(8, 4), select="HK020").findings
    assert finding.value is not None and finding.value > 1e-2


class Listed(nn.Module):
    """Calls what it holds in a ModuleList, as nn.TransformerEncoder does: the list itself is never called."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers.children())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("wrapper", [lambda layers: layers, Listed])
@pytest.mark.parametrize(("gain", "id"), [(0.2, "HK014"), (5.0, "HK015")])
def test_a_wrapper_is_no_first_block(gain: float, id: str, wrapper: Any) -> None:  # noqa: A002
    """What it returns is the last block's output, and comparing with that would turn the verdict round."""
    torch.manual_seed(1)
    model = nn.Sequential(wrapper(tower(nn.Identity(), 12, gain)))
    found = check(model, wide(), select=["HK014", "HK015"]).findings
    assert [f.check for f in found] == [id] and found[0].fqn.startswith("0.")


def test_a_list_of_images_is_no_batch_but_has_its_eval_mode() -> None:
    class Detects(nn.Module):
        def __init__(self, always: bool) -> None:
            super().__init__()
            self.body = Dropped(always)

        def forward(self, images: list[Tensor]) -> list[Tensor]:
            return [self.body(image) + (torch.rand(()) if self.body[1].training else 0) for image in images]

    images = ([torch.randn(2, 4), torch.randn(3, 4)],)
    assert check(Detects(False), images, select="HK028").findings == []
    [finding] = check(Detects(True), images, select="HK028").findings
    expected = ("body.1", "warning", "draws random numbers in eval mode")
    assert (finding.fqn, finding.severity, finding.message) == expected


def test_a_model_that_fails_in_eval_mode_is_told_once() -> None:
    model = Fn(lambda y: y if model.training else y.view(3, 7))
    report = check(model, torch.randn(4, 4))
    [finding] = report.findings
    assert finding.check == "HK001" and finding.message.startswith("in eval mode: the model (Fn) failed")
    assert "HK028 random-in-eval" in {item.fqn for item in report.skipped}


@pytest.mark.parametrize(("buffer", "batch"), each_once([False, True], [1, 4]))
def test_state_is_told_from_dependence_on_the_batch(buffer: bool, batch: int) -> None:
    model, x = Counts("eval", buffer), torch.randn(batch, 4)
    with untouched(model):
        report = check(model, x, select=["HK020", "HK028", "HK029"])
    [finding] = report.findings
    assert (finding.check, finding.fqn, finding.severity) == ("HK029", "1", "error")
    assert "a second run on the same batch gives a different result (difference: " in finding.message
    if batch > 1 and not buffer:  # a buffer is put back before other batches are compared
        [item] = report.skipped
        assert item.fqn == "HK020 batch-dependence" and "HK029" in item.reason
    assert check(Counts("eval", False), torch.randn(4, 4), select="HK020").findings == []


def test_what_mixes_the_batch_is_not_state() -> None:
    report = check(Fn(lambda y: y - y.mean(0)), torch.randn(4, 4), select=["HK020", "HK029"])
    assert [f.check for f in report.findings] == ["HK020"]


def test_random_numbers_that_torch_does_not_seed_are_state() -> None:
    state = random.getstate()
    report = check(Noisy(False), torch.randn(4, 4), select=["HK020", "HK028", "HK029"])
    random.setstate(state)
    assert [(f.check, f.fqn) for f in report.findings] == [("HK029", "layer")]


def test_a_cache_that_breaks_the_second_run() -> None:
    class Caches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(0, 4))

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                self.seen = torch.cat([self.seen, x])
                x = x + self.seen
            return x

    [finding] = check(Caches(), torch.randn(4, 4), select=["HK020", "HK029"]).findings
    begins = "in eval mode, on the second run, the model (Caches)"
    assert finding.check == "HK029" and finding.message.startswith(begins)


class Rounds(nn.Module):
    """Rounds the first item in another way beside other items, as kernels do; its mean is near zero."""

    def forward(self, x: Tensor) -> Tensor:
        ones = torch.ones_like(x).flatten(1)
        ones[:, ::2] += 4 * torch.finfo(x.dtype).eps * bool(x[1:].sum() > 0)
        return (x - x.mean(1, keepdim=True)) * ones.view_as(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rounding_is_not_blamed_for_what_mixes_the_batch(dtype: torch.dtype) -> None:
    for mixing, place in ((Fn(lambda y: y - y.mean(0)), ["1.layer"]), (nn.Identity(), [])):
        model = nn.Sequential(Rounds(), mixing, nn.Linear(16, 2)).to(dtype)
        report = check(model, torch.ones(3, 16, dtype=dtype).cumsum(1), select="HK020")
        assert [f.fqn for f in report.findings] == place
