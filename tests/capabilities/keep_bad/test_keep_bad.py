"""The cause of the first value that is not finite, and the module that is kept so that it can be reproduced."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import forks
import pytest
import torch
from observing import Seen, observed
from record.observe.figures import Shrink
from safetensors.torch import load_file
from torch import Tensor, nn

from hookcli.capabilities.keep_bad import checked, kept_call
from hookcli.errors import UsageError
from hookcli.hooks.session import HookSession
from hookcli.record.file.views.run_lines import non_finite_line
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.system.torchrun import World


def diverging(last: Callable[[], nn.Module] = nn.Tanh, rate: float = 1e20, dtype: torch.dtype = torch.float32) -> Seen:
    def program() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 8), last()).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 4, dtype=dtype)).sum().backward()
            optimizer.step()
        return model

    return observed(program, every=100, first_bad="report", **_keep)


_keep: dict[str, str] = {}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(_keep, "keep_bad", str(tmp_path / "bad"))
    return tmp_path / "bad"


def test_the_cause_is_the_update_before() -> None:
    (bad,) = diverging(nn.Identity).non_finites
    said = re.fullmatch(r"the update at step (\d) was (\d)e(\d+) times the weights; learning rate 1e\+20", bad.cause)
    assert said is not None and int(said[1]) == bad.step - 1 and int(said[3]) >= 19
    assert bad.cause in non_finite_line(bad)


def test_small_updates_are_no_cause() -> None:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x - 100).log()

    (bad,) = diverging(Log, 1e-3).non_finites
    assert (bad.step, bad.fqn, bad.cause, bad.kept) == (0, "3", "", "")


class Overflow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp2() * 60000 * 2


def test_the_end_of_float16_is_a_cause() -> None:
    (bad,) = diverging(Overflow, 1e-3, torch.float16).non_finites
    assert bad.cause.startswith("float16 ends at 65,504; then ") and bad.cause.endswith(" Inf in the model's output")


def reproduced(said: str) -> str:
    found = re.fullmatch(r"`python (\S+)` reproduces it", said)
    assert found is not None, said
    command = [sys.executable, found[1]]
    tests = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = forks.run(command, capture_output=True, text=True, timeout=120, env=tests)
    assert run.returncode == 0, run.stderr
    now, then = re.fullmatch(r"now: (.*)then:(.*)", run.stdout, re.DOTALL).groups()  # type: ignore[union-attr]
    assert now.strip() == then.strip() and re.search("nan|inf", now)
    return Path(found[1]).read_text()


@pytest.mark.sweep
def test_what_is_kept_reproduces_the_value(kept: Path) -> None:
    (bad,) = diverging(nn.Identity).non_finites
    text = reproduced(bad.kept)
    assert "module = torch.nn.Linear(in_features=" in text and bad.fqn in text
    (file,) = kept.glob("*.safetensors")
    found = load_file(file)
    assert not all(x.isfinite().all() for key, x in found.items() if key == "output")
    assert {key for key in found if key != "rng.cpu"} == {"input.0", "output", "module.weight", "module.bias"}


def test_further_runs_and_ranks_have_files_of_their_own(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"Sequential-step1-{diverging(nn.Identity).non_finites[0].fqn}"
    diverging(nn.Identity)
    monkeypatch.setattr("hookcli.capabilities.keep_bad.recorder.joined_world", lambda: World(1, 2))
    diverging(nn.Identity)
    stems = [name, f"{name}-2", f"{name}-rank1"]
    found = {path.name for path in kept.iterdir()}
    assert found == {f"{stem}.{end}" for stem in stems for end in ("py", "safetensors")}


def test_a_class_of_the_program_is_pickled(kept: Path) -> None:
    (bad,) = diverging(lambda: Shrink(8), 1e-3).non_finites
    assert "torch.load(here.with_suffix('.pt'), weights_only=False)" in reproduced(bad.kept)


@dataclass
class Both:
    x: Tensor
    factor: object


class Scaled(nn.Linear):
    def forward(self, x: Tensor, both: Both, **others: object) -> Both:
        return Both(super().forward(x) / both.factor, complex("nan"))


def test_values_of_the_programs_own_classes_are_to_be_filled_in(kept: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Scaled(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            both = type("No\nname = 1 / 0", (Both,), {})(x, 0.0)
            return self.inner(x, both, **{"a-b": complex("nan")}).x

    def program() -> bool:
        return bool(Net()(torch.ones(1, 2)).isfinite().any())

    (bad,) = observed(program, first_bad="report", keep_bad=str(kept)).non_finites
    said = re.fullmatch(r'`python (\S+)` reproduces it, once each "= ..." in it is filled in', bad.kept)
    assert said is not None, bad.kept
    text = Path(said[1]).read_text()
    assert "value0 = ...  # a No\\nname = 1 / 0\n" in text
    assert "module(kept['input.0'], value0, **{'a-b': complex('(nan+0j)')})" in text
    assert 'print("then:", {' in text and "kept['output..x']" in text


SCRIPT = """
    import torch

    from half import HALF

    class _Inverse(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return _over(x, self.weight)

    def _over(x, y):
        return WIDE * HALF * x / y

    WIDE = 2.0
    if True:
        from hookcli.capabilities.keep_bad.kept_call import KeepBad
        from pathlib import Path
        from hookcli.hooks.session import HookSession
        keep = KeepBad(Path("bad"))
        model = _Inverse()
        with HookSession(model) as session:
            keep.attach(session)
            model(torch.ones(2))
        print(keep.write("", 'of "Net"', 'ends in "a"'), "trains")
    """


def test_a_class_of_a_script_that_does_not_run_again(tmp_path: Path) -> None:
    """Its name is not an identifier; what the class needs comes along, what the script does stays behind."""
    (tmp_path / "half.py").write_text("HALF = 0.5\n")
    (tmp_path / "bad-net.py").write_text(dedent(SCRIPT))
    tests = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for script in ("bad-net.py", "bad/of_Net_.py"):
        run = forks.run([sys.executable, script], cwd=tmp_path, env=tests, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
    assert "trains" not in (tmp_path / "bad/of_Net_.py").read_text()
    assert re.fullmatch(r"now:  tensor\(\[inf, inf\]\)\nthen: tensor\(\[inf, inf\]\)\n", run.stdout)


def test_a_parameter_that_is_not_finite_is_the_cause() -> None:
    (bad,) = diverging(lambda: nn.PReLU(8, init=float("nan"))).non_finites
    assert bad.cause == "its weight is not finite"


def test_tensors_that_cannot_be_asked_are_passed_by(kept: Path) -> None:
    class Sparse(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu().to_sparse()

    class Dense(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to_dense() / 0

    (bad,) = diverging(lambda: nn.Sequential(Sparse(), nn.Identity(), Dense()), 1e-3).non_finites
    assert bad.fqn == "3.2" and "it could not be kept" in bad.kept  # its input is sparse, which safetensors can't hold


def test_only_outputs_are_kept(kept: Path) -> None:
    def program() -> nn.Module:
        model = nn.Linear(2, 2)
        model.weight.register_hook(lambda g: g * float("nan"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return model

    (bad,) = observed(program, first_bad="report", keep_bad=str(kept)).non_finites
    assert bad.kept == "modules are kept for outputs, not for a parameter gradient" and not kept.exists()


def test_a_folder_that_cannot_be(kept: Path) -> None:
    kept.write_text("a file")
    (bad,) = diverging(nn.Identity).non_finites
    assert "it could not be kept (FileExistsError" in bad.kept


def test_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--keep-bad: needs a search; add --first-bad"):
        RecordingPlan(of_parts={"keep_bad": "bad"})
    monkeypatch.setattr(checked, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape("pip install 'hookcli[safetensors]'")):
        RecordingPlan(of_parts={"keep_bad": "bad", "first_bad": "stop"})


def test_random_states_are_kept_of_the_models_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a dropout on an accelerator can be run again; here one that is not there."""
    asked: list[object] = []
    states = kept_call.random_states
    monkeypatch.setattr(kept_call, "accelerators", lambda model, inputs: [torch.device("meta")])
    monkeypatch.setattr(kept_call, "random_states", lambda devices: (asked.append(devices), states(()))[1])
    with HookSession(nn.Linear(2, 2)) as session:
        kept_call.KeepBad(Path("bad")).attach(session)
        session.model(torch.ones(1, 2))
    assert asked == [[torch.device("meta")]]
