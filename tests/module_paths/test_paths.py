"""Names of modules: paths, tails, globs, shared modules, wrappers, several models."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from layerstep.errors import BadArguments, UnknownPath
from layerstep.module_paths.models import Models
from layerstep.module_paths.names import Names
from layerstep.module_paths.where import Where


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(2, 2)
        self.norm = nn.LayerNorm(2)


def blocks(depth: int = 3) -> nn.Module:
    model = nn.Module()
    model.encoder = nn.ModuleList(Block() for _ in range(depth))
    model.head = nn.Linear(2, 2)
    return model


ALIVE: list[nn.Module] = []
"""`Models` holds its models weakly, so somebody has to hold them here."""


def models_of(**named: nn.Module) -> Models:
    models = Models()
    for name, model in named.items():
        ALIVE.append(model)
        models.add(model, name)
    return models


def found(models: Models, text: str) -> list[str]:
    return [path for path, _ in Where.parse(text).look_up(models)]


def test_paths_are_those_of_named_modules() -> None:
    model = blocks()
    assert [path for path, _ in Names(model)] == [path for path, _ in model.named_modules()]


def test_any_unique_tail_will_do() -> None:
    models = models_of(model=blocks())
    assert found(models, "encoder.1.attn") == ["encoder.1.attn"]
    assert found(models, "1.attn") == ["encoder.1.attn"]
    assert found(models, "head") == ["head"]
    assert found(models, "model") == ["model"]


def test_an_ambiguous_tail_lists_the_candidates() -> None:
    with pytest.raises(UnknownPath, match=r"'attn' is the end of 3 paths; encoder.0.attn, encoder.1.attn"):
        found(models_of(model=blocks()), "attn")


def test_a_tail_is_whole_segments() -> None:
    with pytest.raises(UnknownPath):
        found(models_of(model=blocks()), "ead")


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("encoder.*.attn", ["encoder.0.attn", "encoder.1.attn", "encoder.2.attn"]),
        ("*.attn", ["encoder.0.attn", "encoder.1.attn", "encoder.2.attn"]),
        ("encoder.[01].norm", ["encoder.0.norm", "encoder.1.norm"]),
        ("encoder.[!01].norm", ["encoder.2.norm"]),
        ("encoder.?", ["encoder.0", "encoder.1", "encoder.2"]),
        ("**.norm", ["encoder.0.norm", "encoder.1.norm", "encoder.2.norm"]),
        ("encoder.**.attn", ["encoder.0.attn", "encoder.1.attn", "encoder.2.attn"]),
        ("/1.*norm/", ["encoder.1.norm"]),
        ("/head$", ["head"]),
        ("type:LayerNorm", ["encoder.0.norm", "encoder.1.norm", "encoder.2.norm"]),
        ("type:*Norm", ["encoder.0.norm", "encoder.1.norm", "encoder.2.norm"]),
        ("type:ModuleList", ["encoder"]),
    ],
)
def test_where(text: str, paths: list[str]) -> None:
    assert found(models_of(model=blocks()), text) == paths


def test_a_type_is_also_its_bases() -> None:
    class Special(nn.Linear):
        pass

    assert found(models_of(model=nn.Sequential(Special(1, 1))), "type:Linear") == ["0"]


def test_everything_is_everything() -> None:
    model = blocks()
    assert len(found(models_of(model=model), "**")) == len(list(model.modules()))


@pytest.mark.parametrize("text", ["nosuch", "encoder.9", "*.nosuch", "/nosuch/", "type:Conv2d"])
def test_nothing_found_is_an_error_with_a_hint(text: str) -> None:
    with pytest.raises(UnknownPath) as caught:
        found(models_of(model=blocks()), text)
    assert caught.value.hint


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(UnknownPath, match=r"encoder\.1\.attn"):
        found(models_of(model=blocks()), "encoder.1.atn")


@pytest.mark.parametrize("text", ["", "  ", "/[/"])
def test_a_malformed_where_is_refused(text: str) -> None:
    with pytest.raises(BadArguments):
        Where.parse(text)


def test_a_shared_module_has_all_its_paths() -> None:
    model = nn.Module()
    model.a = model.b = Block()
    names = Names(model)
    assert names.paths_of(model.a) == ["a", "b"]
    assert names.module_at("b.attn") is model.a.attn
    assert names.paths_of(model.a.attn) == ["a.attn"]


def test_a_module_that_contains_itself_ends() -> None:
    model = Block()
    model.again = model
    assert [path for path, _ in Names(model)] == ["", "attn", "norm", "again"]


def test_wrappers_have_no_segment() -> None:
    inner = blocks(1)
    wrapped = nn.DataParallel(inner)
    outer = nn.Sequential(wrapped)
    assert [path for path, _ in Names(wrapped)] == [path for path, _ in inner.named_modules()]
    assert "0.encoder.0.attn" in dict(Names(outer))
    compiled = torch.compile(blocks(1), backend="eager")
    assert "encoder.0.attn" in dict(Names(compiled))


def test_a_scripted_module_is_a_leaf() -> None:
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(1, 1))))
    assert [path for path, _ in Names(model)] == ["", "0"]


def test_several_models_put_their_name_in_front() -> None:
    models = models_of(student=blocks(1), teacher=blocks(1))
    assert found(models, "teacher.head") == ["teacher.head"]
    assert found(models, "*.head") == ["student.head", "teacher.head"]
    with pytest.raises(UnknownPath, match="2 paths"):
        found(models, "head")


def test_a_loss_does_not_make_the_model_one_of_several() -> None:
    models = models_of(model=blocks(1), criterion=nn.MSELoss())
    assert found(models, "head") == ["head"]
    assert found(models, "criterion") == ["criterion"]
    assert models.main is not None and models.main.name == "model"


def test_a_part_that_was_met_first_gives_way_to_the_whole() -> None:
    model = blocks(1)
    models = models_of(head=model.head)
    models.add(model, "model")
    assert [m.name for m in models] == ["model"]


def test_a_name_that_is_also_a_child_is_not_used_for_the_root() -> None:
    model = nn.Module()
    model.model = nn.Linear(1, 1)
    models = models_of(model=model)
    assert [m.name for m in models] == ["Module"]
    assert found(models, "model") == ["model"]


def test_names_keep_no_model_alive() -> None:
    model = blocks(1)
    models = Models()
    models.add(model, "model")
    assert found(models, "head")
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert len(models) == 0


def test_ten_thousand_modules() -> None:
    model = nn.Sequential(*(nn.Sequential(*(nn.Linear(1, 1) for _ in range(99))) for _ in range(101)))
    models = models_of(model=model)
    assert len(found(models, "**")) == 10_101
    assert found(models, "100.98") == ["100.98"]
