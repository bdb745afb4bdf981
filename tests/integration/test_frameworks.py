"""Nero in the training loops of transformers, accelerate, Lightning and peft (`make test-frameworks` installs them)."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from nero import Nero, param_groups

VOCABULARY, LENGTH = 23, 6
REASON = "needs the extra `frameworks`: make test-frameworks"
STEPS = 8


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=REASON)


def causal_model(kind: str) -> Any:
    """A tiny transformer with random weights, in evaluation mode: without dropout."""
    transformers = library("transformers")
    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    if kind == "gpt2":
        small = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
        config = transformers.GPT2Config(vocab_size=VOCABULARY, **small, **ids)
    elif kind == "llama":
        small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.LlamaConfig(vocab_size=VOCABULARY, **small, **ids)
    else:
        small = {"d_model": 16, "d_ff": 24, "num_layers": 2, "num_heads": 2, "d_kv": 8}
        config = transformers.T5Config(
            vocab_size=VOCABULARY, decoder_start_token_id=0, dropout_rate=0.0, **small, **ids
        )
        return transformers.T5ForConditionalGeneration(config).eval()
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def tokens(count: int = 32) -> Tensor:
    """Each token is the one before it plus a step that the first two tell."""
    generator = torch.Generator().manual_seed(0)
    start, step = torch.randint(VOCABULARY, (2, count, 1), generator=generator)
    return (start + step.remainder(3) * torch.arange(LENGTH)).remainder(VOCABULARY)


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: param.detach().clone() for name, param in model.named_parameters()}


def assert_equal(model: nn.Module, expected: dict[str, Tensor]) -> None:
    assert all(torch.equal(param, expected[name]) for name, param in model.named_parameters())


# --------------------------------------------------------------------------------------------------- transformers


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_transformers_learn_with_groups_by_role(kind: str) -> None:
    model = causal_model(kind)
    groups = param_groups(model)
    listed = [id(param) for group in groups for _, param in group["params"]]
    assert sorted(listed) == sorted(id(param) for param in model.parameters())
    roles = {name: (group["role"], group.get("neuron_dim", 0)) for group in groups for name, _ in group["params"]}
    expected = {
        "gpt2": {
            "transformer.wte.weight": ("embeddings", 0),
            "transformer.wpe.weight": ("embeddings", 0),
            "transformer.h.0.attn.c_attn.weight": ("neurons", 1),
            "transformer.h.1.mlp.c_proj.weight": ("neurons", 1),
            "transformer.ln_f.weight": ("gains", None),
            "transformer.h.0.attn.c_attn.bias": ("biases", None),
        },
        "llama": {
            "model.embed_tokens.weight": ("embeddings", 0),
            "model.layers.0.self_attn.q_proj.weight": ("neurons", 0),
            "model.layers.0.input_layernorm.weight": ("gains", None),
            "lm_head.weight": ("head", 0),
        },
        "t5": {
            "shared.weight": ("embeddings", 0),
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": ("biases", None),
            "decoder.block.1.layer.1.EncDecAttention.v.weight": ("neurons", 0),
            "encoder.final_layer_norm.weight": ("gains", None),
        },
    }[kind]
    assert {name: roles[name] for name in expected} == expected

    before = values(model)
    optimizer = Nero(groups, lr=0.02)
    for name, param in model.named_parameters():
        role, dim = roles[name]
        if role in ("gains", "biases"):
            assert torch.equal(param, before[name])
        else:
            rows = param.detach().transpose(0, dim or 0).flatten(1)
            is_padding = rows.norm(dim=1) == 0
            torch.testing.assert_close(rows.norm(dim=1)[~is_padding], torch.ones(len(rows))[~is_padding])
    batch = tokens()
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        self.tokens = tokens()

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[i], "labels": self.tokens[i]}


def trainer(model: Any, folder: Path, **settings: Any) -> Any:
    transformers = library("transformers")
    arguments = {"max_steps": STEPS, "save_steps": STEPS // 2, "per_device_train_batch_size": 4, "learning_rate": 0.02}
    arguments |= {"report_to": [], "use_cpu": True, "disable_tqdm": True, "max_grad_norm": 0.0}
    training = transformers.TrainingArguments(output_dir=str(folder), **arguments)
    return transformers.Trainer(model=model, args=training, train_dataset=Sentences(), **settings)


def test_trainer_of_transformers_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    """With groups by role, given as an optimiser: a resumed run ends with the weights of one without a stop."""
    library("accelerate")

    def groups_trainer(model: Any) -> Any:
        optimizer = Nero(param_groups(model), lr=0.02)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)
        return trainer(model, tmp_path, optimizers=(optimizer, schedule))

    whole = causal_model("llama")
    start = values(whole)
    groups_trainer(whole).train()
    assert not any(torch.equal(param, start[name]) for name, param in whole.named_parameters())
    resumed = causal_model("llama")
    groups_trainer(resumed).train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS // 2}"))
    assert_equal(resumed, values(whole))


def test_trainer_of_transformers_makes_the_optimiser(tmp_path: Path) -> None:
    """It gives each of its two groups a weight decay, here zero, and clips gradients, here not."""
    library("accelerate")
    model = causal_model("llama")
    settings = {"lr": 0.02, "norm": "initial"}
    run = trainer(model, tmp_path, optimizer_cls_and_kwargs=(Nero, settings))
    before = values(model)
    optimizer = run.create_optimizer()
    assert_equal(model, before)
    assert isinstance(optimizer, Nero)
    assert len(optimizer.param_groups) == 2
    loss = run.evaluate(Sentences())["eval_loss"]
    run.train()
    assert run.evaluate(Sentences())["eval_loss"] < loss


# ------------------------------------------------------------------------------------------ accelerate, Lightning


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def batches() -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 5, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=8)


def make(model: nn.Module) -> tuple[Nero, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = Nero(param_groups(model, head={"norm": False}), lr=0.02)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def plainly_trained() -> dict[str, Tensor]:
    """What the plain loop makes of the network in two epochs."""
    model = network()
    optimizer, schedule = make(model)
    for _ in range(2):
        for inputs, targets in batches():
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        schedule.step()
    return values(model)


def test_accelerate(tmp_path: Path) -> None:
    """Also from a checkpoint after the first epoch."""
    accelerate = library("accelerate")

    def prepared() -> Iterator[Any]:
        accelerator = accelerate.Accelerator(cpu=True)
        model = network()
        return accelerator, *accelerator.prepare(model, *make(model), batches())

    def train_epoch(accelerator: Any, model: Any, optimizer: Any, schedule: Any, loader: Any) -> None:
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(inputs), targets))
            optimizer.step()
        schedule.step()

    first = prepared()
    train_epoch(*first)
    first[0].save_state(str(tmp_path))
    second = prepared()
    second[0].load_state(str(tmp_path))
    train_epoch(*second)
    assert_equal(second[1], plainly_trained())


def test_lightning(tmp_path: Path) -> None:
    """Also from a checkpoint after the first epoch."""
    lightning = library("lightning")

    class Classifier(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer, schedule = make(self)
            return {"optimizer": optimizer, "lr_scheduler": schedule}

        def training_step(self, batch: list[Tensor], number: int) -> Tensor:
            return cross_entropy(self.network(batch[0]), batch[1])

    def fit(epochs: int, checkpoint: Path | None = None) -> Classifier:
        model = Classifier()
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        run = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", default_root_dir=tmp_path, enable_checkpointing=False, **quiet
        )
        run.fit(model, batches(), ckpt_path=checkpoint)
        run.save_checkpoint(tmp_path / "last.ckpt")
        return model

    fit(1)
    assert_equal(fit(2, tmp_path / "last.ckpt").network, plainly_trained())


# ---------------------------------------------------------------------------------------------------------- peft


@pytest.mark.parametrize(("by_role", "norm"), [(False, True), (True, True), (True, "initial")])
def test_lora_changes_nothing_but_its_own_matrices_and_these_slowly(by_role: bool, norm: Any) -> None:
    peft = library("peft")
    base = causal_model("llama")
    plain, batch = deepcopy(base), tokens()
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    model = peft.get_peft_model(base, config).eval()
    frozen = {name: param.detach().clone() for name, param in model.named_parameters() if "lora" not in name}
    lr, sigma_b = 0.02, 0.01
    optimizer = Nero(param_groups(model) if by_role else model.parameters(), lr=lr, norm=norm, sigma_b=sigma_b)
    with torch.no_grad():
        assert torch.equal(model(batch).logits, plain(batch).logits)

    b_matrices = [param for name, param in model.named_parameters() if "lora_B" in name]
    assert len(b_matrices) == 4
    losses = []
    for step in range(1, 61):
        optimizer.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        # The first step of a neuron has length lr * sigma_b, less its mean unless norm="initial". Later gradients may
        # be larger than the average of those before.
        largest = torch.stack([matrix.detach().norm(dim=1).max() for matrix in b_matrices])
        assert (largest > 0).all()
        assert (largest < (1.001 if step == 1 else 3 * step) * lr * sigma_b).all()
    assert losses[-1] < losses[0]
    assert all(torch.equal(param, frozen[name]) for name, param in model.named_parameters() if name in frozen)
