"""Input from files of tensors, from pictures and from texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from hookcli.engine.batches import DataBatches
from hookcli.engine.setting import Setting
from hookcli.errors import UsageError
from hookcli.sources.base import Recipe, one_list
from hookcli.sources.data.base import Data
from hookcli.sources.data.images import image_input
from hookcli.sources.data.tensor_files import file_input
from hookcli.sources.data.texts import text_input


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Any, mask: Any = None) -> Any:
        return x


def given(data: Data, model: nn.Module | None = None, batch: int | None = None, **recipe: Any) -> list[Any]:
    """The arguments of all batches."""
    model = model or Net()
    setting = Setting(data=data, batch=batch)
    return [one.inputs for one in DataBatches(Recipe("net", lambda: model, **recipe), model, setting).each()]


X = np.arange(6, dtype=np.float64).reshape(2, 3) / 7


@pytest.mark.parametrize(
    ("name", "write", "keyword"),
    [
        ("x.npy", lambda file: np.save(file, X), ""),
        ("x.npz", lambda file: np.savez(file, X), ""),
        ("x.npz", lambda file: np.savez(file, x=X), "x"),
        ("x.pt", lambda file: torch.save(torch.tensor(X).float(), file), ""),
        ("x.pt", lambda file: torch.save((torch.tensor(X).float(),), file), ""),
        ("x.pth", lambda file: torch.save({"x": torch.tensor(X).float()}, file), "x"),
        ("x.safetensors", lambda file: save_file({"x": torch.tensor(X).float()}, file), "x"),
    ],
)
def test_tensors_of_files_are_arguments(
    tmp_path: Path, name: str, write: Callable[[Path], object], keyword: str
) -> None:
    write(tmp_path / name)
    (found,) = given(file_input([str(tmp_path / name)]))
    value = found[keyword] if keyword else found[0]
    assert len(found) == 1 and value.dtype is torch.float32  # the model's: numpy makes float64 of plain numbers
    assert torch.equal(value, torch.tensor(X).float())
    if not keyword:
        assert [*given(file_input([f"x={tmp_path / name}"]))[0]] == ["x"]


def test_files_together(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    np.save(tmp_path / "b.npy", np.ones(2, dtype=np.int64))
    a, b = str(tmp_path / "a.npy"), str(tmp_path / "b.npy")
    (found,) = given(file_input([a, b]))
    assert [x.dtype for x in found] == [torch.float32, torch.int64]
    assert [*given(file_input([f"mask={b}", f"x={a}"]))[0]] == ["mask", "x"]
    for files, said in (([f"x={a}", b], "name all arguments or none"), ([f"x={a}", f"x={b}"], "'x' is given twice")):
        with pytest.raises(UsageError, match=said):
            given(file_input(files))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".safetensors"])
def test_files_that_are_none(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"bad{suffix}"
    for content in (b"", b"no tensors", b"\x93NUMPY\x01\x00"):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=f"--input-file: .*bad{suffix}: is not ") as caught:
            given(file_input([str(file)]))
        assert "\n" not in str(caught.value) and "allow_pickle" not in str(caught.value)


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("ran"),)


def test_a_file_of_tensors_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"x": torch.ones(2), "y": Evil()}, "evil.pt")
    with pytest.raises(UsageError, match=r"evil.pt: is not a tensor, or a tuple or dict of tensors"):
        given(file_input(["evil.pt"]))
    assert not Path("ran").exists()


def bright(image: Image.Image) -> Tensor:
    """The mean of each channel."""
    return torch.tensor(np.asarray(image.resize((4, 4))), dtype=torch.float32).mean((0, 1))


def pictures(folder: Path, values: Sequence[int]) -> Path:
    (folder / "within").mkdir(parents=True)
    for number, value in enumerate(values):
        place = folder / "within" if number % 2 else folder
        Image.new("RGB", (5 + number, 5), (value, 0, 0)).save(place / f"{number}.png")
    (folder / "notes.txt").write_text("no picture")
    return folder


def test_pictures_of_a_folder_are_batches_in_order_of_their_names(tmp_path: Path) -> None:
    folder = str(pictures(tmp_path / "pictures", (10, 20, 30)))
    # 0.png, 2.png, within/1.png
    (found,) = given(image_input([folder], None), transforms=lambda: bright)
    assert found[0][:, 0].tolist() == [10, 30, 20]
    parts = given(image_input([folder], None), batch=2, transforms=lambda: bright)
    assert [x[:, 0].tolist() for (x,) in parts] == [[10, 30], [20]]
    assert len(given(image_input([folder], 1), batch=2, transforms=lambda: bright)) == 1
    (listed,) = given(image_input([folder], None), transforms=lambda: bright, batched=False, arrange=one_list)
    assert [x[0].item() for x in listed[0]] == [10, 30, 20]
    keywords = given(image_input([folder], 1), transforms=lambda: bright, arrange=lambda x: {"x": x[0]})
    assert [*keywords[0]] == ["x"]


def test_pictures_that_are_none(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures", (10, 20))
    (folder / "within" / "2.png").write_bytes((folder / "0.png").read_bytes()[:40])
    made: list[Any] = []
    with pytest.raises(UsageError, match=r"--image: .*2\.png is not a picture that Pillow can read"):
        made += given(image_input([str(folder)], None), batch=1, transforms=lambda: bright)
    with pytest.raises(UsageError, match=r"keep pictures' sizes apart .*use --batch-size 1"):
        given(image_input([str(folder)], 1), batch=2, transforms=lambda: lambda image: torch.zeros(image.size))
    with pytest.raises(UsageError, match=r"the transforms failed on .*: ValueError: dull"):
        given(image_input([str(folder)], 1), transforms=lambda: dull)
    with pytest.raises(UsageError, match=r"--image: the transforms of net can't be made: .*missing 1 required"):
        given(image_input([str(folder)], 1), transforms=dull)


def dull(image: Image.Image) -> Tensor:
    raise ValueError("dull")


class Letters:
    """A tokenizer as Hugging Face's are called: a letter is a token."""

    def __init__(self, pad_token: str | None = "_", eos_token: str | None = None) -> None:
        self.pad_token, self.eos_token = pad_token, eos_token

    def __call__(self, texts: list[str], *, return_tensors: str, padding: bool, truncation: bool) -> dict[str, Tensor]:
        assert return_tensors == "pt" and not truncation
        assert not padding or self.pad_token
        longest = max(map(len, texts))
        ids = [[ord(c) for c in text.ljust(longest)] for text in texts]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor([[c != 32 for c in row] for row in ids])}


class Reads(nn.Module):
    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        return input_ids


def test_texts_are_tokens_by_name_or_by_place(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("abc\n\nde\nf\n")
    (found,) = given(text_input([str(lines), "g"], None, None), Reads(), tokenizer=Letters)
    assert [*found] == ["input_ids", "attention_mask"] and found["input_ids"].shape == (4, 3)
    parts = given(text_input([str(lines)], None, None), Net(), batch=2, tokenizer=Letters)
    assert [[x.tolist() for x in one] for one in parts] == [[[[97, 98, 99], [100, 101, 32]]], [[[102]]]]
    given(text_input(["a", "b"], None, None), Reads(), tokenizer=lambda: Letters(None, "."))
    with pytest.raises(UsageError, match="no token to pad with; use --batch-size 1"):
        given(text_input(["a", "b"], None, None), Reads(), tokenizer=lambda: Letters(None))
    with pytest.raises(UsageError, match=r"--text: the tokenizer of net can't be made: .*missing 1 required"):
        given(text_input(["a"], None, None), Reads(), tokenizer=dull)
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(UsageError, match="the file has no text"):
        text_input([str(tmp_path / "empty.txt")], None, None)


@pytest.mark.sweep
def test_a_tokenizer_of_a_folder(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "hello": 2, "world": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained(tmp_path / "tokenizer")
    (found,) = given(text_input(["hello world", "hello"], str(tmp_path / "tokenizer"), None), Reads())
    assert found["input_ids"].tolist() == [[2, 3], [2, 1]] and found["attention_mask"].tolist() == [[1, 1], [1, 0]]
    with pytest.raises(UsageError, match="has no tokenizer that Transformers can read"):
        given(text_input(["hello"], str(tmp_path), None), Reads())
