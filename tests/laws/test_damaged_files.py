"""Files of others, mutated by a seed: each is opened, or turned down in one line; never a traceback."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from layerstep import DebugConsole
from layerstep.cli import main
from layerstep.config import load_config
from layerstep.errors import UserError
from layerstep.profile.compare import FORMAT, compare_profiles, load

SEEDS = 60
ODD: list[Any] = [
    *(None, True, -1, 0, 1 << 70, 1e308, -(1 << 63), "", "x", "\x1b[8m", "a" * 10_000, [], {}, [1, 2, 3]),
    *({"is": "tensor", "number": 99}, {"is": "list", "items": None}, {"is": "dict", "items": [[{}, 1]]}),
]
LINES = ("where", "tree", "info breaks", "list", "stats out", "dump", "weights", "up", "inspect mod", "p inp")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in pairs for place in [(*path, key), *places(item, (*path, key))]]


def mutated(document: Any, rng: random.Random) -> Any:
    """Up to three values of a JSON replaced, dropped, exchanged or buried."""
    document = copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        *path, last = rng.choice(places(document))
        inside = document
        for key in path:
            inside = inside[key]
        action = rng.randrange(4)
        if action == 0:
            inside[last] = rng.choice(ODD)
        elif action == 1:
            del inside[last]
        elif action == 2 and isinstance(inside, dict):
            other = rng.choice(list(inside))
            inside[last], inside[other] = inside[other], inside[last]
        else:
            for _ in range(rng.choice([3, 60])):
                inside[last] = {"is": "list", "items": [inside[last]]}
    return document


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """Bits turned, or an end cut off."""
    if rng.random() < 0.5:
        return raw[: rng.randrange(len(raw))]
    changed = bytearray(raw)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("core") / "good.lscore"
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    lines = io.StringIO(f"record **\nnext\ndump {file}\n")
    with DebugConsole(model, input=lines, output=io.StringIO()) as console:
        console.execute("break 2.1")
        model(torch.ones(3, 4))
    return file.read_bytes()


def mutated_core(raw: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return damaged(raw, rng)
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    if rng.random() < 0.2:
        header = mutated(header, rng)
    elif isinstance(header["__metadata__"], dict):
        contents = mutated(json.loads(header["__metadata__"]["core"]), rng)
        header["__metadata__"]["core"] = json.dumps(contents)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + raw[8 + size :]


def opened(path: Path) -> tuple[int, str]:
    err = io.StringIO()
    given = [word for line in LINES for word in ("-e", line)]
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        return main(["open", "--batch", *given, str(path)]), err.getvalue()


@pytest.mark.parametrize("tenth", range(10))
def test_a_mutated_core_file(tenth: int, core: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.lscore"
    for seed in range(tenth, SEEDS, 10):
        path.write_bytes(mutated_core(core, random.Random(seed)))
        code, said = opened(path)
        assert code in (0, 2), seed
        assert "a bug in layerstep" not in said and "Traceback" not in said, (seed, said)
        assert "\x1b" not in said, seed
        if code == 2:
            assert said.startswith("layerstep: ") and said.count("\n") == 1, (seed, said)


@pytest.mark.parametrize(
    "place, value",
    [
        (("calls", 0, "values", "items"), []),
        (("recordings", 0, "forward"), {}),
        (("points", 0), {}),
        (("history"), 3),
    ],
)
def test_what_is_asked_for_only_later_is_found_out_at_once(place, value, core: bytes, tmp_path: Path) -> None:
    (size,) = struct.unpack("<Q", core[:8])
    header = json.loads(core[8 : 8 + size])
    contents = json.loads(header["__metadata__"]["core"])
    *path, last = place if isinstance(place, tuple) else (place,)
    inside = contents
    for key in path:
        inside = inside[key]
    inside[last] = value
    header["__metadata__"]["core"] = json.dumps(contents)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (tmp_path / "x.lscore").write_bytes(struct.pack("<Q", len(text)) + text + core[8 + size :])
    code, said = opened(tmp_path / "x.lscore")
    assert code == 2 and said.count("\n") == 1 and "is damaged" in said, said


PROFILE = {
    "layerstep_profile": FORMAT,
    "word": "w",
    "device": "cpu",
    "rounds": [
        {
            "wall": [0.1] * 8,
            "forward": {"a": [0.05] * 8},
            "backward": {"a": [0.02] * 8},
            "pace": [[0.001] * 3] * 8,
        }
    ],
}


def test_a_mutated_profile(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(PROFILE))
    sound = load(good)
    compare_profiles(sound, sound)
    for seed in range(200):
        rng = random.Random(seed)
        text = json.dumps(mutated(PROFILE, rng)).encode()
        bad.write_bytes(text if rng.random() < 0.7 else damaged(text, rng))
        with contextlib.suppress(UserError):
            compare_profiles(sound, load(bad))
    bad.write_text("[" * 100_000)
    with pytest.raises(UserError, match="not a saved profile"):
        load(bad)


def test_a_mutated_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("LAYERSTEP_CONFIG", str(path))
    good = b"max_lines = 30\npager = false\ncontext = 4\n"
    texts = [damaged(good, random.Random(seed)) for seed in range(200)]
    for text in [*texts, b"x = " + b"[" * 50_000, b"max_lines = " + b"9" * 5000, b"max_lines = 1e999"]:
        path.write_bytes(text)
        with contextlib.suppress(UserError):
            load_config()


def answer(line: str) -> str:
    model, out = nn.Linear(2, 2), io.StringIO()
    with DebugConsole(model, input=io.StringIO(f"{line}\n"), output=out) as console:
        console.execute("break **")
        model(torch.ones(1, 2))
    return out.getvalue()


def test_a_tensor_file_that_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("good.npy", np.zeros((1, 2), dtype=np.float32))
    raw = Path("good.npy").read_bytes()
    Path("huge.npy").write_bytes(raw.replace(b"(1, 2), }" + b" " * 6, b"(99999999, 99),"))
    assert "✗" in answer("compare out huge.npy")
    with zipfile.ZipFile("bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 50_000_000)
    assert "compressed" in answer("compare out bomb.pt")
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 8]}}).encode()
    Path("lie.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    assert "cannot read lie.safetensors" in answer("compare out lie.safetensors")
    for name in ("huge.npy", "bomb.pt", "lie.safetensors"):
        said = answer(f"compare out {name}")
        assert "a bug in" not in said and "Traceback" not in said


def test_a_damaged_file_of_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("binary.txt").write_bytes(bytes(range(256)))
    Path("nul.txt").write_bytes(b"break 0\0\n")
    Path("large.txt").write_bytes(b"# x\n" * 500_000)
    Path("deep.txt").write_text("(" * 5000 + "\n")
    for name in ("binary.txt", "nul.txt", "large.txt", "deep.txt"):
        said = answer(f"source {name}")
        assert "a bug in" not in said and "✗" in said, name
